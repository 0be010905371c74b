// `tamis replay`: reading a trace, the batching, and the table of launch costs that it counts with.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "bench/replay.hpp"
#include "cli_output.hpp"
#include "support/expect_error.hpp"

namespace tamis::test {
namespace {

using bench::ReplayForm;
using bench::ReplayLaunches;
using bench::ReplayResult;

std::filesystem::path write_file(const std::string& name, const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

const std::string kSynthetic = TAMIS_SOURCE_DIR "/bench/traces/synthetic.csv";

TEST(ReplayTrace, ColumnsAreFoundByName) {
  const auto path = write_file("replay_columns.csv",
                               "\xEF\xBB\xBFGeneratedTokens,Region,TIMESTAMP,ContextTokens\r\n"
                               "7,x,2023-11-16 18:17:04.5000000,30\r\n"
                               "5,y,2023-11-16T18:17:03.25Z,10\r\n"
                               "\r\n"
                               "6,z,2023-11-17 00:00:00+00:00,20\r\n");
  const auto trace = bench::read_trace(path);
  ASSERT_EQ(trace.size(), 3U);  // by arrival
  EXPECT_EQ(trace[0].prompt_tokens, 10);
  EXPECT_EQ(trace[0].generated_tokens, 5);
  EXPECT_DOUBLE_EQ(trace[0].arrival_s, 0);
  EXPECT_NEAR(trace[1].arrival_s, 1.25, 1e-6);
  EXPECT_NEAR(trace[2].arrival_s, 5 * 3600 + 42 * 60 + 56.75, 1e-3);
  EXPECT_EQ(bench::read_trace(path, 1).size(), 1U);
}

TEST(ReplayTrace, ZonesCount) {
  const auto trace = bench::read_trace(write_file("replay_zones.csv",
                                                  "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                                  "2023-11-16 18:17:03+05:30,1,1\n"
                                                  "2023-11-16 18:17:03-05:00,2,1\n"
                                                  "2023-11-16T18:17:03Z,3,1\n"));
  ASSERT_EQ(trace.size(), 3U);
  EXPECT_EQ(trace[1].prompt_tokens, 3);
  EXPECT_NEAR(trace[1].arrival_s, 5.5 * 3600, 1e-3);
  EXPECT_EQ(trace[2].prompt_tokens, 2);
  EXPECT_NEAR(trace[2].arrival_s, 10.5 * 3600, 1e-3);
}

TEST(ReplayTrace, SecondsAreTimes) {
  const auto trace = bench::read_trace(
      write_file("replay_seconds.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n12.5,1,2\n13,3,4\n"));
  ASSERT_EQ(trace.size(), 2U);
  EXPECT_DOUBLE_EQ(trace[1].arrival_s, 0.5);
}

TEST(ReplayTrace, ErrorsNameFileLineAndColumn) {
  const auto fails = [](const std::string& text, const std::string& why) {
    const auto path = write_file("replay_bad.csv", text);
    EXPECT_TRUE(throws(Status::kInvalidArgument, path.string() + why, [&] { bench::read_trace(path); }));
  };
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  fails("", ": is empty, must begin with a line of column names");
  fails("TIMESTAMP,ContextTokens\n1,2\n", ": line 1 has no column GeneratedTokens, it is: TIMESTAMP,ContextTokens");
  fails(header, ": has no requests");
  fails(header + "1,2,3\n1,2\n", ": line 3 has 2 columns, must have 3");
  fails(header + "1,-2,3\n", ": line 2: ContextTokens is \"-2\", must be a whole number from 0 to 16777216");
  fails(header + "1,2,3.5\n", ": line 2: GeneratedTokens is \"3.5\", must be a whole number from 0 to 16777216");
  for (const char* time : {"", "yesterday", "2023-13-01 00:00:00", "2023-02-30 00:00:00", "2023-02-03 24:00:00",
                           "2023-02-03 10:00:00.", "2023-02-03 10:00:00.1x", "2023-02-03 10:00:00+ab:cd",
                           "2023-02-03 10:00:00+-1:00", "2023-02-03 10:00:00+24:00", "2023-02-03 10:00:00+05", "inf"}) {
    fails(header + time + ",2,3\n", ": line 2: TIMESTAMP is \"" + std::string(time) +
                                        "\", must be a time like 2023-11-16 18:17:03.98 or seconds");
  }
  EXPECT_TRUE(throws(Status::kInvalidArgument, "/nonexistent/x.csv: cannot be read",
                     [] { bench::read_trace("/nonexistent/x.csv"); }));
  EXPECT_TRUE(throws(Status::kInvalidArgument, testing::TempDir() + ": cannot be read",
                     [] { bench::read_trace(testing::TempDir()); }));
}

const ReplayForm& form_of(const ReplayResult& result, const std::string& mode, const std::string& form) {
  for (const ReplayForm& f : result.forms) {
    if (f.mode == mode && f.form == form) return f;
  }
  ADD_FAILURE() << mode << " " << form;
  return result.forms.front();
}

// One request of 100 prompt tokens that generates 60: steps at 0 (100 tokens), then 59 of one token, of which that at
// 127 completes the one C128 entry, and every fourth a C4 entry.
TEST(Replay, OneRequestByHand) {
  bench::ReplayOptions options;
  options.c128_layers = 2;
  options.c4_layers = 1;
  const ReplayResult result = bench::replay({{0, 100, 60}}, options);
  EXPECT_EQ(result.requests, 1);
  EXPECT_EQ(result.tokens, 159);
  EXPECT_EQ(result.steps, 60);
  EXPECT_EQ(result.c128_empty_steps, 59);
  EXPECT_EQ(result.c4_empty_steps, 60 - 1 - 14);  // 103, 107, .., 155
  const auto expect = [&](const char* mode, const char* form, std::int64_t made, std::int64_t skipped,
                          std::int64_t wasted) {
    SCOPED_TRACE(std::string(mode) + " " + form);
    const ReplayLaunches& c128 = form_of(result, mode, form).c128;
    EXPECT_EQ(c128.made, 2 * made);
    EXPECT_EQ(c128.skipped, 2 * skipped);
    EXPECT_EQ(c128.wasted, 2 * wasted);
    EXPECT_GT(c128.us, 0.0);
  };
  for (const char* mode : {"none", "piecewise"}) {
    expect(mode, "three_launches", 180, 0, 118);
    expect(mode, "three_launches_skip", 3 + 59, 118, 0);
    expect(mode, "fused", 60, 0, 0);
    expect(mode, "fused_skip", 60, 0, 0);
  }
  // In a full graph only the prompt's step is enqueued by the host.
  expect("full", "three_launches", 180, 0, 118);
  expect("full", "three_launches_skip", 1 + 3 * 59, 2, 116);
  expect("full", "fused", 60, 0, 0);
  const ReplayForm& all = form_of(result, "none", "three_launches");
  EXPECT_EQ(all.c4.made, 3 * 60 * 2);  // main and indexer
  EXPECT_LT(form_of(result, "none", "fused").c128.us, all.c128.us);
}

TEST(Replay, RequestsShareStepsAndWaitForRoom) {
  bench::ReplayOptions options;
  options.max_requests = 2;
  options.max_tokens = 8;
  // 10 prompt tokens in chunks of 8 and less; the third waits until one of the others is done.
  const ReplayResult result = bench::replay({{0, 10, 1}, {0, 3, 3}, {0, 4, 0}}, options);
  EXPECT_EQ(result.requests, 3);
  EXPECT_EQ(result.tokens, 10 + 5 + 4);
  EXPECT_EQ(result.steps, 4);  // 8; 2 + 3; 1 + 4; 1
}

TEST(Replay, AnIdleServerGoesOnToTheNextArrival) {
  const ReplayResult result = bench::replay({{0, 1, 1}, {1e6, 1, 1}}, {});
  EXPECT_EQ(result.steps, 2);
}

TEST(Replay, LimitsAreChecked) {
  bench::ReplayOptions options;
  options.max_requests = 9;
  options.max_tokens = 8;
  EXPECT_TRUE(throws(Status::kInvalidArgument,
                     "replay: max_requests is 9 and max_tokens 8, must be at least 1 and at least as many tokens as "
                     "requests",
                     [&] {
                       bench::replay({{0, 1, 1}}, options);
                     }));
}

TEST(ReplayCommand, TableAndJsonOfTheTraceThatShips) {
  const CliOutput table = run_tamis("replay --trace " + kSynthetic + " --requests 50");
  ASSERT_EQ(table.exit_code, 0) << table.text;
  EXPECT_NE(table.text.find("50 requests, "), std::string::npos) << table.text;
  for (const char* mode : {"\nnone ", "\npiecewise ", "\nfull "}) {
    EXPECT_NE(table.text.find(mode), std::string::npos) << mode;
  }
  const CliOutput json = run_tamis("replay --trace " + kSynthetic + " --json");
  ASSERT_EQ(json.exit_code, 0) << json.text;
  const auto lines = json.json_lines();
  ASSERT_EQ(lines.size(), 24U);  // modes x forms x ratios
  for (const auto& line : lines) {
    EXPECT_EQ(line["requests"], 240);
    EXPECT_GT(line["made"].get<std::int64_t>(), 0) << line;
    const bool may_skip = line["form"] == "three_launches_skip";
    EXPECT_EQ(may_skip || line["skipped"] == 0, true) << line;
  }
  const CliOutput bad = run_tamis("replay --trace /nonexistent.csv");
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.text.find("/nonexistent.csv: cannot be read"), std::string::npos) << bad.text;
}

// What a launch costs is what was measured.
TEST(ReplayCosts, AreThoseOfTheMeasurements) {
  const std::map<std::string, bench::StepForm> forms = {{"three_launches", bench::StepForm::kThreeLaunches},
                                                        {"three_launches_skip", bench::StepForm::kThreeLaunchesSkip},
                                                        {"fused", bench::StepForm::kFused},
                                                        {"fused_skip", bench::StepForm::kFusedSkip}};
  std::ifstream in(TAMIS_SOURCE_DIR "/docs/measurements/compressor_h200.jsonl");
  std::size_t found = 0;
  for (std::string line; std::getline(in, line);) {
    const auto row = nlohmann::json::parse(line);
    if (row["op"] != "compressor") continue;
    const std::string step = row["distribution"], algorithm = row["algorithm"];
    const std::size_t comma = algorithm.find(", ");
    const auto form = forms.find(algorithm.substr(0, comma));
    if (form == forms.end() || step.find(" paged") == std::string::npos || step.starts_with("steady")) continue;
    const auto kind = row["ratio"] == 128      ? bench::CompressorKind::kC128
                      : row["head_dim"] == 512 ? bench::CompressorKind::kC4
                                               : bench::CompressorKind::kIndexer;
    for (const bench::CompressorCost& cost : bench::kCompressorCosts) {
      if (cost.kind != kind || cost.form != form->second || cost.tokens != row["tokens"] ||
          step != std::string(cost.step) + " paged") {
        continue;
      }
      ++found;
      const double us = algorithm.ends_with("graph") ? cost.graph_us : cost.eager_us;
      EXPECT_NEAR(us, row["us"].get<double>(), 0.006) << line;
    }
  }
  EXPECT_EQ(found, 2 * std::size(bench::kCompressorCosts));  // each eager and in a graph
}

}  // namespace
}  // namespace tamis::test
