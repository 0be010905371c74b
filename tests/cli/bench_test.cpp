// `tamis bench` and the parts it is made of: timing, floors, rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bench/floors.hpp"
#include "bench/memory.hpp"
#include "bench/ops.hpp"
#include "bench/session.hpp"
#include "bench/timing.hpp"
#include "cli_output.hpp"
#include "core/float_formats.hpp"
#include "expect_error.hpp"

namespace tamis::bench {
namespace {

TEST(BenchTiming, MedianAndSpread) {
  EXPECT_EQ(summarise({}).repeats, 0);
  const Timing one = summarise({7.0});
  EXPECT_EQ(one.us, 7.0);
  EXPECT_EQ(one.spread, 0.0);
  const Timing odd = summarise({5.0, 1.0, 3.0, 2.0, 4.0});
  EXPECT_EQ(odd.us, 3.0);
  EXPECT_DOUBLE_EQ(odd.spread, (4.0 - 2.0) / 3.0);
  EXPECT_EQ(odd.repeats, 5);
  const Timing even = summarise({4.0, 1.0, 2.0, 100.0});  // an outlier moves neither
  EXPECT_EQ(even.us, 3.0);
  EXPECT_DOUBLE_EQ(even.spread, (28.0 - 1.75) / 3.0);
}

TEST(BenchTiming, PreparedWorkRunsOnceAfterEachPreparation) {
  int prepared = 0, ran = 0;
  const std::vector<Timing> timings = measure({{[&] {
                                                  ++ran;
                                                  EXPECT_EQ(ran, prepared);
                                                },
                                                [&] { ++prepared; }},
                                               {[] {}}},
                                              15, TimingClock::kWall);
  EXPECT_EQ(ran, 15);
  ASSERT_EQ(timings.size(), 2U);
  EXPECT_EQ(timings[0].repeats, 15);
  EXPECT_LT(timings[1].us, 1.0);  // an empty call takes nanoseconds: the time is that of one call, not of a sample
}

TEST(BenchTiming, ThreadClockDoesNotCountSleep) {
  const Work sleep = {[] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, [] {}};
  EXPECT_LT(measure({sleep}, 3, TimingClock::kThread)[0].us, 10'000.0);
  EXPECT_GE(measure({sleep}, 3, TimingClock::kWall)[0].us, 20'000.0);
  EXPECT_STREQ(clock_name(clock_for(1)), "thread");
  EXPECT_STREQ(clock_name(clock_for(2)), "wall");
}

TEST(BenchFloors, SumsAreSums) {
  RandomBits random(1);
  for (const std::size_t count : {0U, 1U, 15U, 16U, 127U, 128U, 129U, 1000U, 4099U}) {
    std::vector<float> values(count);
    std::vector<std::uint16_t> bits(count);
    double sum = 0, bf16_sum = 0, magnitude = 0;
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = random.uniform(0, 1);
      bits[i] = core::float_to_bf16(values[i]);
      sum += values[i];
      bf16_sum += core::bf16_to_float(bits[i]);
      magnitude += std::abs(values[i]);
    }
    // Each term is in at most count additions, in whatever order.
    const double bound = static_cast<double>(count) * 0x1p-24 * magnitude * 1.01;
    EXPECT_NEAR(sum_fp32(values.data(), count), sum, bound) << count;
    EXPECT_NEAR(sum_bf16(bits.data(), count), bf16_sum, bound) << count;
  }
}

TEST(BenchFloors, FmaPeakIsPlausible) {
  const double flops_per_us = fma_flops_per_us(1);
  // A clock of 0.1 to 10 GHz, 1 to 2 x 2 x 16 operations a cycle; sanitizers only slow it down.
  EXPECT_GT(flops_per_us, 100.0);
  EXPECT_LT(flops_per_us, 10e3 * 64);
  EXPECT_EQ(fma_flops_per_us(1), flops_per_us) << "measured once";
}

TEST(BenchEngine, PromptIsTheOneOtherProgramsMake) {
  // From the recurrence in bench/ops.hpp, computed elsewhere.
  EXPECT_EQ(engine_prompt(6, 260), (std::vector<std::int32_t>{148, 108, 17, 118, 27, 185}));
  EXPECT_TRUE(engine_prompt(0, 260).empty());
}

Row example_row() {
  Row row;
  row.op = "topk";
  row.dtype = "fp32";
  row.shape = {{"rows", 1}, {"width", 262144}, {"k", 512}};
  row.distribution = "normal";
  row.algorithm = "simd_filter";
  row.timing = {40.0, 0.02, 21};
  row.floor_us = 20.0;
  row.checked = true;
  return row;
}

TEST(BenchSession, RowAsJson) {
  Row row = example_row();
  nlohmann::json json = row_json(row, 3);
  for (const char* name : {"op", "device", "cpu", "simd", "dtype", "rows", "width", "k", "distribution", "algorithm",
                           "clock", "us", "spread", "floor_us", "goal_us", "checked", "threads", "repeats", "commit"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["width"], 262144);
  EXPECT_EQ(json["us"], 40.0);
  EXPECT_EQ(json["floor_us"], 20.0);
  EXPECT_TRUE(json["goal_us"].is_null());
  EXPECT_EQ(json["threads"], 3);
  EXPECT_EQ(json["commit"], built_from());
  row.goal_us = 38.5;
  row.more = {{"flops", 7}};
  json = row_json(row, 1);
  EXPECT_EQ(json["goal_us"], 38.5);
  EXPECT_EQ(json["flops"], 7);
}

const GpuMachine kGpu = {"NVIDIA H200", "580.65.06", "13.0"};

TEST(BenchSession, RowOfAGpuAsJson) {
  Row row = example_row();
  row.goal_us = 38.5;
  row.more = {{"hot_us", 30.5}, {"best_other", "FlashInfer 0.6.18"}};
  const nlohmann::ordered_json json = row_json(row, 3, kGpu);
  // All of it, in this order: scripts/charts.py and docs/measurements/README.md speak of these fields.
  std::vector<std::string> names;
  for (const auto& [name, value] : json.items()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"op",        "device",  "gpu",    "driver",   "cuda",
                                             "dtype",     "rows",    "width",  "k",        "distribution",
                                             "algorithm", "us",      "spread", "floor_us", "goal_us",
                                             "checked",   "repeats", "commit", "hot_us",   "best_other"}));
  EXPECT_EQ(json["device"], "cuda");
  EXPECT_EQ(json["gpu"], "NVIDIA H200");
  EXPECT_EQ(json["driver"], "580.65.06");
  EXPECT_EQ(json["cuda"], "13.0");
  EXPECT_EQ(json["us"], 40.0);
  EXPECT_EQ(json["goal_us"], 38.5);
  EXPECT_EQ(json["hot_us"], 30.5);
  EXPECT_EQ(json["commit"], built_from());
}

TEST(BenchSession, RowsAreOfTheGpuOnceOneIsUsed) {
  Options options;
  options.json = true;
  std::string out;
  Session session(options, [&](const std::string& line) { out = line; });
  EXPECT_TRUE(session.begin("topk fp32"));
  session.row(example_row());
  EXPECT_EQ(nlohmann::json::parse(out)["device"], "cpu");
  session.use_gpu(kGpu);
  session.row(example_row());
  EXPECT_EQ(nlohmann::json::parse(out)["gpu"], "NVIDIA H200");

  Session table(Options{}, [&](const std::string& line) { out += line + "\n"; });
  table.use_gpu(kGpu);
  EXPECT_TRUE(table.begin("topk fp32"));
  table.row(example_row());
  table.finish({});
  EXPECT_NE(out.find("\nNVIDIA H200, driver 580.65.06, CUDA 13.0, median of 21"), std::string::npos) << out;
}

TEST(BenchSession, TableHasOneHeaderAndTheShareOfTheFloor) {
  std::string out;
  Session session(Options{}, [&](const std::string& line) { out += line + "\n"; });
  EXPECT_TRUE(session.begin("topk fp32"));
  session.row(example_row());
  session.row(example_row());
  session.finish({"a note"});
  EXPECT_EQ(out.find("floor us"), out.rfind("floor us")) << out;
  EXPECT_NE(out.find("topk fp32 rows 1, width 262144, k 512"), std::string::npos) << out;
  EXPECT_NE(out.find(" 50% "), std::string::npos) << out;
  EXPECT_NE(out.find("1 thread, median of 21"), std::string::npos) << out;
  EXPECT_NE(out.find("a note\n"), std::string::npos) << out;
  EXPECT_EQ(session.num_rows(), 2);
}

TEST(BenchSession, FilterThatMatchesNothingIsAnError) {
  Options options;
  options.filter = "width 7";
  Session session(options, [](const std::string&) {});
  EXPECT_FALSE(session.begin("topk fp32 rows 1, width 8"));
  EXPECT_TRUE(test::throws(Status::kInvalidArgument, "bench: --filter 'width 7' matches no case of suite targets",
                           [&] { session.finish({}); }));
}

TEST(BenchSession, WrongResultsAreCountedNotPrinted) {
  std::string out;
  Session session(Options{}, [&](const std::string& line) { out += line; });
  session.begin("case");
  testing::internal::CaptureStderr();
  session.wrong("case", "indices[0, 1] is 2, must be 3");
  const std::string err = testing::internal::GetCapturedStderr();
  EXPECT_NE(err.find("wrong result, not timed: case: indices[0, 1] is 2, must be 3\n"), std::string::npos) << err;
  EXPECT_EQ(session.num_wrong(), 1);
  EXPECT_EQ(out, "");
}

// --- The command -----------------------------------------------------------------------------------------------------

using test::run_tamis;

class BenchCommand : public testing::TestWithParam<const char*> {};

TEST_P(BenchCommand, SmokeSuiteIsCheckedAndTimed) {
  const std::string op = GetParam();
  const test::CliOutput got = run_tamis("bench " + op + " --cpu --suite smoke --repeats 15 --json");
  ASSERT_EQ(got.exit_code, 0) << got.text;
  const std::vector<nlohmann::json> rows = got.json_lines();
  ASSERT_GE(rows.size(), 2U) << got.text;
  std::set<std::string> cases;
  for (nlohmann::json row : rows) {
    EXPECT_EQ(row["checked"], true) << row;
    EXPECT_EQ(row["device"], "cpu");
    EXPECT_EQ(row["threads"], 1);
    EXPECT_EQ(row["repeats"], 15);
    EXPECT_GT(row["us"].get<double>(), 0.0) << row;
    EXPECT_GT(row["floor_us"].get<double>(), 0.0) << row;
    EXPECT_FALSE(row["cpu"].get<std::string>().empty());
    EXPECT_FALSE(row["commit"].get<std::string>().empty());
    for (const char* name : {"us", "spread", "floor_us", "goal_us"}) row.erase(name);
    EXPECT_TRUE(cases.insert(row.dump()).second) << "twice: " << row;
  }
}

TEST_P(BenchCommand, TableSaysWhatTheFloorIs) {
  const std::string op = GetParam();
  const test::CliOutput got = run_tamis("bench " + op + " --suite smoke --repeats 15");
  ASSERT_EQ(got.exit_code, 0) << got.text;
  for (const char* text : {"floor us", "goal us", "checked", "median of 15", "commit ", "\nfloor: "}) {
    EXPECT_NE(got.text.find(text), std::string::npos) << text << " in\n" << got.text;
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, BenchCommand, testing::Values("topk", "compressor", "indexer", "sparse_mla"),
                         [](const auto& op) { return std::string(op.param); });

TEST(BenchCommandLine, TopkTimesNthElementToo) {
  const test::CliOutput got = run_tamis("bench topk --suite smoke --filter 'width 4096' --threads 2 --json");
  ASSERT_EQ(got.exit_code, 0) << got.text;
  const std::vector<nlohmann::json> rows = got.json_lines();
  ASSERT_EQ(rows.size(), 2U) << got.text;
  EXPECT_EQ(rows[0]["algorithm"], "simd_filter");
  EXPECT_EQ(rows[1]["algorithm"], "nth_element_pairs");
  EXPECT_EQ(rows[0]["threads"], 2);
}

TEST(BenchCommandLine, Refusals) {
  const auto refused = [](const std::string& arguments, const std::string& text) {
    const test::CliOutput got = run_tamis(arguments);
    EXPECT_EQ(got.exit_code, 2) << arguments << "\n" << got.text;
    EXPECT_NE(got.text.find(text), std::string::npos) << text << " in\n" << got.text;
  };
  refused("bench", "subcommand");
  refused("bench topk --filter nothing-has-this-name",
          "--filter 'nothing-has-this-name' matches no case of suite targets");
  refused("bench topk --repeats 14", "--repeats: Value 14 not in range");
  refused("bench topk --suite all", "--suite: all not in {");
  refused("bench engine --model /nonexistent", "/nonexistent");
}

// CUDA offers no device where this variable is empty, so the text is the same on a machine with a GPU.
test::CliOutput run_without_gpu(const std::string& arguments) {
  return test::run_command("CUDA_VISIBLE_DEVICES= '" TAMIS_CLI "' " + arguments);
}

TEST(BenchCommandLine, WithoutAGpuOneLineSaysSo) {
  for (const char* arguments : {"bench topk --gpu", "bench topk --gpu --suite smoke --json --no-torch",
                                "bench compressor --gpu", "bench compressor --gpu --suite smoke --json"}) {
    const test::CliOutput got = run_without_gpu(arguments);
    EXPECT_EQ(got.exit_code, 2) << got.text;
    EXPECT_EQ(std::count(got.text.begin(), got.text.end(), '\n'), 1) << got.text;
    EXPECT_NE(got.text.find("bench: --gpu was asked for, but "), std::string::npos) << got.text;
#ifdef TAMIS_HAS_CUDA
    EXPECT_NE(got.text.find("there is no CUDA device: "), std::string::npos) << got.text;
#else
    EXPECT_NE(got.text.find("this build has no CUDA kernels"), std::string::npos) << got.text;
#endif
  }
}

TEST(BenchCommandLine, GpuRefusals) {
  const auto refused = [](const std::string& arguments, const std::string& text) {
    const test::CliOutput got = run_without_gpu(arguments);
    EXPECT_EQ(got.exit_code, 2) << arguments << "\n" << got.text;
    EXPECT_NE(got.text.find(text), std::string::npos) << text << " in\n" << got.text;
  };
  refused("bench topk --gpu --cpu", "--cpu excludes --gpu");
  refused("bench topk --algorithm grid", "--algorithm requires --gpu");
  refused("bench topk --no-torch", "--no-torch requires --gpu");
  refused("bench topk --gpu --algorithm simd_filter", "--algorithm: simd_filter not in {");
}

TEST(BenchCommandLine, SmokeSuiteOnTheGpuIsCheckedAndTimed) {
  const test::CliOutput got = run_tamis("bench topk --gpu --suite smoke --repeats 15 --json --no-torch");
  if (got.exit_code == 2 && got.text.find("--gpu was asked for, but ") != std::string::npos) GTEST_SKIP() << got.text;
  ASSERT_EQ(got.exit_code, 0) << got.text;
  const std::vector<nlohmann::json> rows = got.json_lines();
  ASSERT_GE(rows.size(), 2U) << got.text;
  for (const nlohmann::json& row : rows) {
    EXPECT_EQ(row["checked"], true) << row;
    EXPECT_EQ(row["device"], "cuda");
    EXPECT_EQ(row["repeats"], 15);
    EXPECT_FALSE(row["gpu"].get<std::string>().empty());
    for (const char* name : {"us", "hot_us", "floor_us"}) EXPECT_GT(row[name].get<double>(), 0.0) << name << row;
  }
}

TEST(BenchCommandLine, CompressorOnTheGpuIsCheckedAndTimedInEveryForm) {
  const test::CliOutput got = run_tamis("bench compressor --gpu --suite smoke --repeats 15 --json");
  if (got.exit_code == 2 && got.text.find("--gpu was asked for, but ") != std::string::npos) GTEST_SKIP() << got.text;
  ASSERT_EQ(got.exit_code, 0) << got.text;
  std::set<std::string> forms;
  for (const nlohmann::json& row : got.json_lines()) {
    if (row["op"] != "compressor") continue;
    EXPECT_EQ(row["checked"], true) << row;
    EXPECT_GT(row["us"].get<double>(), 0.0) << row;
    forms.insert(row["algorithm"]);
  }
  EXPECT_EQ(forms.size(), 10U) << got.text;  // five, each eager and in a graph
}

TEST(BenchCommandLine, EngineSaysTimeAndMemory) {
  const test::CliOutput got = run_tamis("bench engine --model " TAMIS_SOURCE_DIR
                                        "/models/tiny-v4 --context 200 --new-tokens 5 --repeats 2 --threads 1 "
                                        "--kv-cache fp8 --json");
  ASSERT_EQ(got.exit_code, 0) << got.text;
  const std::vector<nlohmann::json> rows = got.json_lines();
  ASSERT_EQ(rows.size(), 2U) << got.text;
  EXPECT_EQ(rows[0]["op"], "engine_prefill");
  EXPECT_EQ(rows[1]["op"], "engine_decode");
  for (const nlohmann::json& row : rows) {
    EXPECT_GT(row["us"].get<double>(), 0.0);
    EXPECT_EQ(row["kv_cache"], "fp8");
    EXPECT_EQ(row["context"], 200);
    const auto caches = row["caches_bytes"].get<std::int64_t>(), weights = row["weights_bytes"].get<std::int64_t>();
    EXPECT_GT(caches, 0);
    EXPECT_GT(row["peak_rss_bytes"].get<std::int64_t>(), caches);
    EXPECT_EQ(row["peak_rss_goal_bytes"].get<std::int64_t>(), caches + weights + 200'000'000);
    // 7.4 million parameters in fp32 (models/tiny-v4/README.md).
    EXPECT_NEAR(static_cast<double>(weights), 4 * 7.4e6, 4 * 0.05e6);
  }
  EXPECT_EQ(rows[1]["tokens"].size(), 5U);
  EXPECT_EQ(rows[1]["repeats"], 2 * 4) << "every decode step of every run";
}

TEST(BenchScripts, ChartsAndReadmeAreUpToDate) {
  if (std::system("python3 --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no python3";
  const test::CliOutput got = test::run_command("python3 '" TAMIS_SOURCE_DIR "/scripts/charts.py' --check");
  EXPECT_EQ(got.exit_code, 0) << got.text;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The script works on the tree that it lies in: here one with nothing but GPU lines as the benchmark writes them.
TEST(BenchScripts, GpuLinesBecomeChartsAndFigures) {
  if (std::system("python3 --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no python3";
  namespace fs = std::filesystem;
  const fs::path root = fs::path(testing::TempDir()) / "tamis_charts_test", charts = root / "docs/measurements/charts";
  fs::remove_all(root);
  fs::create_directories(root / "scripts");
  fs::create_directories(charts);
  fs::copy_file(TAMIS_SOURCE_DIR "/scripts/charts.py", root / "scripts/charts.py");
  std::ofstream(root / "README.md") << "before\n<!-- measured: begin (scripts/charts.py writes this part) -->\n"
                                       "<!-- measured: end -->\nafter\n";
  {
    std::ofstream lines(root / "docs/measurements/topk_h200.jsonl");
    Row row = example_row();
    const auto line = [&](const char* distribution, const char* algorithm, double us, std::optional<double> goal_us) {
      row.distribution = distribution;
      row.algorithm = algorithm;
      row.timing.us = us;
      row.goal_us = goal_us;
      lines << row_json(row, 1, kGpu) << "\n";
    };
    const nlohmann::ordered_json cited = {
        {"hot_us", 20.5}, {"best_other_us", 60.0}, {"best_other", "DeepSelect sm_90a"}, {"table_torch_us", 248.0}};
    row.more = cited;
    // Measured three times: the last line counts, whatever its algorithm.
    line("normal", "grid", 35.0, 30.0);
    line("normal", "grid", 35.0, 30.0);
    line("normal", "grid", 25.0, 30.0);
    row.more = {{"hot_us", 21.5}};
    line("all_equal", "grid", 30.0, 1.1 * 25.0);
    row.more = {{"hot_us", 190.5}, {"torch", "2.11.0"}};
    line("normal", "torch.topk", 250.0, std::nullopt);
  }
  const std::string command = "python3 '" + (root / "scripts/charts.py").string() + "'";
  const test::CliOutput wrote = test::run_command(command);
  EXPECT_EQ(wrote.exit_code, 0) << wrote.text;
  EXPECT_EQ(test::run_command(command + " --check").exit_code, 0);

  const std::string shapes = read_text(charts / "topk_h200.svg");
  for (const char* text : {"1 x 262,144, k 512", "25.0 us, 80% of floor", "60.0 us DeepSelect sm_90a",
                           "250 us torch.topk", "NVIDIA H200, driver 580.65.06, CUDA 13.0, commit "}) {
    EXPECT_NE(shapes.find(text), std::string::npos) << text << " in\n" << shapes;
  }
  EXPECT_EQ(shapes.find("35.0 us"), std::string::npos) << shapes;
  const std::string kinds = read_text(charts / "topk_h200_distributions.svg");
  EXPECT_NE(kinds.find("all equal</text>"), std::string::npos) << kinds;
  EXPECT_NE(kinds.find("1.20x, 30.0 us"), std::string::npos) << kinds;
  const std::string readme = read_text(root / "README.md");
  for (const char* text : {"before\n", "\nafter\n", "| 80% to 80% |", "| 1 of 1 shapes |", "| 1.20x the normal time |",
                           "2.40x as fast as DeepSelect sm_90a (60.0 us, cited from another run)",
                           "10.0x torch.topk 2.11.0", "met by 0 of 1", "charts/topk_h200.svg"}) {
    EXPECT_NE(readme.find(text), std::string::npos) << text << " in\n" << readme;
  }
  fs::remove_all(root);
}

}  // namespace
}  // namespace tamis::bench
