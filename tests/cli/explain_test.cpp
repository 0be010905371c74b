// `tamis explain`: the row of a rules table that a call would take, and what a compressor's step does.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "cli_output.hpp"
#include "core/gpu_list.hpp"
#include "topk/rules.hpp"
#include "topk/support.hpp"

namespace tamis {
namespace {

using test::run_tamis;

nlohmann::json explain(const std::string& arguments) {
  const test::CliOutput got = run_tamis("explain " + arguments + " --json");
  EXPECT_EQ(got.exit_code, 0) << got.text;
  return got.json();
}

// The one rule marked as chosen; null if there is none.
nlohmann::json chosen(const nlohmann::json& answer) {
  nlohmann::json found;
  for (const nlohmann::json& rule : answer["rules"]) {
    if (!rule["chosen"].get<bool>()) continue;
    EXPECT_TRUE(found.is_null()) << "two rules are chosen: " << answer;
    found = rule;
  }
  return found;
}

void expect_text(const std::string& arguments, std::initializer_list<const char*> texts) {
  const test::CliOutput got = run_tamis("explain " + arguments);
  EXPECT_EQ(got.exit_code, 0) << got.text;
  for (const char* text : texts) EXPECT_NE(got.text.find(text), std::string::npos) << text << " in\n" << got.text;
}

void expect_refused(const std::string& arguments, const std::string& text) {
  const test::CliOutput got = run_tamis("explain " + arguments);
  EXPECT_EQ(got.exit_code, 2) << got.text;
  EXPECT_NE(got.text.find(text), std::string::npos) << text << " in\n" << got.text;
}

TEST(ExplainTopk, SaysTheRuleAndWhy) {
  for (const auto& [shape, algorithm] : {std::pair<const char*, const char*>{"--width 512 --k 512", "identity"},
                                         {"--width 513 --k 512", "simd_filter"},
                                         {"--width 1000000 --k 100000", "select"}}) {
    const nlohmann::json answer = explain(std::string("topk --rows 3 ") + shape);
    EXPECT_EQ(answer["algorithm"], algorithm);
    EXPECT_EQ(chosen(answer)["choice"], algorithm);
    EXPECT_EQ(chosen(answer)["why"], answer["why"]);
    EXPECT_EQ(answer["rows"], 3);
  }
  EXPECT_EQ(explain("topk --width 512 --k 512")["workspace_bytes"], 0);
  expect_text("topk --rows 64 --width 65536 --k 512 --dtype bf16",
              {"topk of 64 x 65536 bf16, k 512: simd_filter\n", "workspace: ", "\n-> simd_filter", "\n   select"});
}

TEST(ExplainTopk, WithoutAShapeTheWholeTable) {
  const nlohmann::json answer = explain("topk");
  EXPECT_TRUE(chosen(answer).is_null());
  EXPECT_GE(answer["rules"].size(), 3U);
  expect_text("topk", {"rules, the first that fits is taken", "identity", "simd_filter", "select"});
}

TEST(ExplainTopk, Refusals) {
  expect_refused("topk --width 100", "--width, --k go together");
  expect_refused("topk --width 100 --k 5 --algorithm identity",
                 "topk: algorithm identity cannot serve this call: width 100 must be at most k = 5");
  expect_refused("topk --width 100 --k -1", "k is -1, must be at least 0");
  expect_refused("topk --width 100 --k 5 --dtype int8", "--dtype: int8 not in {");
}

// The numbers of a GPU as options, so that a test means the same with and without one.
std::string gpu_options(const TopkGpu& gpu) {
  return " --gpu --sms " + std::to_string(gpu.num_sms) + " --shared-bytes " + std::to_string(gpu.max_shared_bytes);
}

// Shapes come out of the rules themselves, so that tuned thresholds move the test along.
TEST(ExplainTopkOnGpu, EveryRuleIsReachable) {
  const TopkGpu a100{108, 166912, 80};
  for (const TopkCudaRule& rule : topk_cuda_rules()) {
    bool found = false;
    for (const TopkGpu& gpu : {kTopkH200, a100}) {
      for (const std::int64_t rows : {1, 64, 4096}) {
        for (const std::int64_t width : {500, 10000, 300000, 1 << 24}) {
          for (const std::int64_t k : {512, 20000}) {
            for (const TopkOrder order : {TopkOrder::kPosition, TopkOrder::kByValue}) {
              const TopkCase c{rows, width, k, order};
              if (found || &choose_topk_cuda_rule(c, gpu) != &rule) continue;
              found = true;
              const nlohmann::json answer = explain(
                  "topk --rows " + std::to_string(rows) + " --width " + std::to_string(width) + " --k " +
                  std::to_string(k) + (order == TopkOrder::kByValue ? " --order by_value" : "") + gpu_options(gpu));
              EXPECT_EQ(answer["device"], "cuda");
              EXPECT_EQ(answer["algorithm"], rule.name);
              EXPECT_EQ(answer["why"], rule.why);
              EXPECT_TRUE(chosen(answer)["limits"].get<std::string>().starts_with(rule.limits));
              EXPECT_EQ(chosen(answer)["measured"], rule.measured);
              EXPECT_EQ(answer["rules"].size(), topk_cuda_rules().size());
              const TopkCudaLayout layout = topk_cuda_layout(c, rule.algorithm, gpu);
              EXPECT_EQ(answer["blocks_a_row"], layout.blocks_per_row);
              EXPECT_EQ(answer["candidates_a_block"], layout.capacity);
              if (layout.workspace_bytes) EXPECT_EQ(answer["workspace_bytes"], *layout.workspace_bytes);
              else EXPECT_TRUE(answer["workspace_bytes"].is_null());
            }
          }
        }
      }
    }
    EXPECT_TRUE(found) << rule.name << ": " << rule.limits;
  }
}

TEST(ExplainTopkOnGpu, SaysWhatKAGpuWithLittleSharedMemoryCanServe) {
  const nlohmann::json answer = explain("topk --rows 4 --width 131072 --k 2048" + gpu_options({142, 101376}));
  EXPECT_EQ(answer["algorithm"], "select");
  for (const nlohmann::json& rule : answer["rules"]) {
    const bool filters = rule["choice"] == "grid" || rule["choice"] == "stream";
    const bool says = rule["limits"].get<std::string>().find("on this GPU k <= 1024") != std::string::npos;
    EXPECT_EQ(says, filters) << rule;
  }
}

TEST(ExplainTopkOnGpu, SaysWhoseNumbersItTakes) {
  const nlohmann::json given = explain("topk" + gpu_options({7, 99 << 10}));
  EXPECT_EQ(given["gpu"]["source"], "as given");
  EXPECT_EQ(given["gpu"]["sms"], 7);
  EXPECT_EQ(given["gpu"]["shared_bytes"], 99 << 10);
  EXPECT_TRUE(chosen(given).is_null());
  std::string why;
  const std::optional<TopkGpu> here = find_topk_gpu(0, why);
  const TopkGpu expected = here.value_or(kTopkH200);
  const nlohmann::json answer = explain("topk --gpu");
  EXPECT_EQ(answer["gpu"]["sms"], expected.num_sms);
  EXPECT_EQ(answer["gpu"]["shared_bytes"], expected.max_shared_bytes);
  const auto source = answer["gpu"]["source"].get<std::string>();
  EXPECT_TRUE(source.starts_with(here ? "read from cuda:0, " : "an H200's: " + why)) << source;
  const auto partly = explain("topk --gpu --sms 9")["gpu"];
  EXPECT_EQ(partly["sms"], 9);
  EXPECT_TRUE(partly["source"].get<std::string>().starts_with("as given, the rest ")) << partly;
}

TEST(ExplainTopkOnGpu, PrintsTheTableWithAnArrow) {
  expect_text("topk --rows 4 --width 131072 --k 2048" + gpu_options(kTopkH200),
              {"GPU: 132 multiprocessors, 232448 bytes of shared memory a block (as given)\n",
               "topk of 4 x 131072 fp32, k 2048: ", " a row", "workspace: ", "\n-> ", "\n   stream", "\n   cub"});
  expect_text("topk" + gpu_options({108, 166912}), {"GPU: 108 multiprocessors, 166912 ", "\n   registers"});
}

TEST(ExplainTopkOnGpu, AForcedAlgorithmSaysEverythingThatSpeaksAgainstIt) {
  const std::string on_h200 = gpu_options(kTopkH200), on_a100 = gpu_options({108, 166912});
  EXPECT_EQ(explain("topk --width 100000 --k 5 --algorithm select" + on_h200)["algorithm"], "select");
  expect_refused("topk --width 131072 --k 5000 --algorithm identity --order by_value" + on_h200,
                 "topk: algorithm identity cannot serve this call: width 131072 must be at most k = 5000; order must "
                 "not be by value");
  expect_refused("topk --width 131072 --k 5000 --algorithm grid" + on_a100,
                 "topk: algorithm grid cannot serve this call: k = 5000 must be at most " +
                     std::to_string(topk_filter_max_k({108, 166912})));
  expect_refused("topk --width 131072 --k 5 --algorithm cub" + on_h200, "order must be by value");
  expect_refused("topk --width 131072 --k 5 --algorithm simd_filter" + on_h200,
                 "topk: algorithm is simd_filter, on CUDA it must be auto, identity, registers, ");
  expect_refused("topk --width 131072 --k 5 --algorithm grid",
                 "topk: algorithm is grid, on the CPU it must be auto, identity, simd_filter or select");
}

TEST(ExplainTopkOnGpu, Refusals) {
  expect_refused("topk --sms 4", "--sms requires --gpu");
  expect_refused("topk --gpu --threads 2", "--threads excludes --gpu");
  expect_refused("topk --gpu --sms 0", "--sms: Value 0 not in range");
  expect_refused("topk --gpu --width 5", "--width, --k go together");
  expect_refused("topk --gpu --rows=-1 --width 5 --k 2", "explain: --rows is -1, must be in [0, 536870912] on CUDA");
  expect_refused("topk --gpu --width 5000000000 --k 2", "explain: --width is 5000000000, must be in [0, 2147483647]");
  expect_refused("topk --gpu --width 5 --k=-2", "explain: --k is -2, must be in [0, 2147483647] on CUDA");
  expect_refused("topk --order sorted", "--order: sorted not in {");
}

TEST(ExplainCompressor, SaysWhichRequestCompletesWhat) {
  // Position 127 ends group 0: request 0 passes it on its way from 80 to 159, request 1 brings just that token.
  const nlohmann::json answer = explain("compressor --starts 80,127,128 --query-lens 80,1,1 --ratio 128");
  EXPECT_EQ(answer["plan"], "some");
  ASSERT_EQ(answer["requests"].size(), 3U);
  const nlohmann::json& passing = answer["requests"][0];
  EXPECT_EQ(passing["entries"], 1);
  EXPECT_EQ(passing["first_entry"], 0);
  EXPECT_EQ(passing["first_position"], 127);
  EXPECT_EQ(passing["state_begin"], 0);
  EXPECT_EQ(answer["requests"][1]["entries"], 1);
  EXPECT_EQ(answer["requests"][2]["entries"], 0);
  EXPECT_EQ(answer["ring_rows"], 128);
  EXPECT_FALSE(chosen(answer).is_null());
  expect_text(
      "compressor --starts 80,127,128 --query-lens 80,1,1",
      {"plan: some", "request 0: positions [80, 160), completes entry 0 at position 127; reads state rows [0, 80)",
       "request 1: positions [127, 128), completes entry 0 at position 127; reads state rows [0, 127)",
       "request 2: positions [128, 129), completes no entry; reads no state", "ring: 128 rows"});
}

TEST(ExplainCompressor, OverlappingRatioReadsTheGroupBefore) {
  const nlohmann::json answer = explain("compressor --starts 10 --query-lens 7 --ratio 4 --max-drafts 3");
  // Positions 10 .. 16 complete the groups that end at 11 and 15; entry 2 pools positions 4 .. 11.
  const nlohmann::json& request = answer["requests"][0];
  EXPECT_EQ(request["entries"], 2);
  EXPECT_EQ(request["first_entry"], 2);
  EXPECT_EQ(request["last_entry"], 3);
  EXPECT_EQ(request["last_position"], 15);
  EXPECT_EQ(request["state_begin"], 4);
  EXPECT_EQ(answer["overlap"], true);
  EXPECT_EQ(answer["ring_rows"], 12);
}

TEST(ExplainCompressor, PlanNoneStillSavesState) {
  const nlohmann::json answer = explain("compressor --starts 0,300 --query-lens 127,1");
  EXPECT_EQ(answer["plan"], "none");
  EXPECT_EQ(answer["saved_bytes"], 128 * 2 * 512 * 4);
  EXPECT_FALSE(chosen(answer).is_null());
  expect_text("compressor --starts 0,300 --query-lens 127,1", {"plan: none", "pooling is skipped"});
}

TEST(ExplainCompressor, RuleFollowsTheStatesFormAndSize) {
  const std::string step = "compressor --ratio 4 --starts 0 --query-lens ";
  EXPECT_EQ(chosen(explain(step + "8"))["choice"], "together, cached");
  EXPECT_EQ(chosen(explain(step + "8192"))["choice"], "together, streamed");
  EXPECT_EQ(chosen(explain(step + "8192 --ring"))["choice"], "pool_then_save, cached");
  EXPECT_EQ(explain(step + "8 --head-dim 128")["saved_bytes"], 8 * 2 * 2 * 128 * 4);
}

TEST(ExplainCompressor, CapturingIsUnknown) {
  const nlohmann::json answer = explain("compressor --starts 0 --query-lens 1 --capturing");
  EXPECT_EQ(answer["plan"], "unknown");
  EXPECT_NE(answer["why"].get<std::string>().find("capturing"), std::string::npos);
}

TEST(ExplainCompressor, BoundsGiveTheFewestAndTheMost) {
  for (const std::int64_t lo : {0, 2, 3, 5}) {
    for (const std::int64_t span : {0, 1, 3, 6}) {
      for (const std::int64_t tokens : {0, 1, 3, 4, 9}) {
        std::int64_t fewest = INT64_MAX, most = 0;
        for (std::int64_t start = lo; start <= lo + span; ++start) {
          std::int64_t count = 0;
          for (std::int64_t p = start; p < start + tokens; ++p) count += (p + 1) % 4 == 0 ? 1 : 0;
          fewest = std::min(fewest, count);
          most = std::max(most, count);
        }
        const nlohmann::json answer = explain("compressor --ratio 4 --starts " + std::to_string(lo) + " --start-hi " +
                                              std::to_string(lo + span) + " --query-lens " + std::to_string(tokens));
        EXPECT_EQ(answer["requests"][0]["fewest_entries"], fewest) << lo << "+" << span << ", " << tokens;
        EXPECT_EQ(answer["requests"][0]["most_entries"], most) << lo << "+" << span << ", " << tokens;
        EXPECT_EQ(answer["plan"], most == 0    ? "none"
                                  : fewest > 0 ? "some"
                                               : "unknown")
            << lo << "+" << span << ", " << tokens;
      }
    }
  }
}

TEST(ExplainCompressor, Refusals) {
  expect_refused("compressor --starts 1", "--starts, --query-lens go together");
  expect_refused("compressor --starts 1,2 --query-lens 1", "must be equally many");
  expect_refused("compressor --starts 5 --start-hi 4 --query-lens 1", "must have lo <= hi");
  expect_refused("compressor --starts 1 --query-lens 1 --ratio 5", "--ratio: 5 not in {");
  expect_refused("compressor --starts=-1 --query-lens 1", "--starts: Value -1 not in range");
}

TEST(ExplainCompressor, WithoutAStepTheWholeTables) {
  EXPECT_GE(explain("compressor")["rules"].size(), 3U);
  EXPECT_EQ(explain("compressor")["cuda_rules"].size(), 4U);
  expect_text("compressor", {"on the CPU:", "on CUDA, one launch a step:", "short_window", "any_window"});
}

TEST(ExplainIndexer, SaysTheSplit) {
  EXPECT_EQ(explain("indexer --rows 1 --columns 65536 --threads 4")["split"], "columns");
  EXPECT_EQ(explain("indexer --rows 1 --columns 65536 --threads 1")["split"], "rows");
  EXPECT_EQ(explain("indexer --rows 64 --columns 65536 --threads 4")["split"], "rows");
  const nlohmann::json answer = explain("indexer --rows 1 --columns 65536 --threads 4");
  EXPECT_EQ(chosen(answer)["why"], answer["why"]);
  EXPECT_TRUE(chosen(explain("indexer")).is_null());
  expect_refused("indexer --rows 1", "--rows, --columns go together");
}

TEST(ExplainSparseMla, SaysThePieces) {
  const nlohmann::json answer = explain("sparse_mla --rows 1 --heads 64 --threads 4");
  EXPECT_EQ(answer["heads_a_piece"], 16);
  EXPECT_EQ(answer["pieces"], 4);
  EXPECT_EQ(chosen(answer)["why"], answer["why"]);
  EXPECT_EQ(explain("sparse_mla --rows 1 --heads 64 --threads 1")["pieces"], 1);
  EXPECT_TRUE(chosen(explain("sparse_mla")).is_null());
  expect_refused("sparse_mla --heads 1", "--rows, --heads go together");
}

TEST(Explain, NeedsAnOperation) { expect_refused("", "subcommand"); }

}  // namespace
}  // namespace tamis
