// `tamis explain`: what a call would do and why, from shapes alone; nothing is computed.

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "compressor/rules.hpp"
#include "core/check.hpp"
#include "core/parallel.hpp"
#include "explain.hpp"
#include "indexer/rules.hpp"
#include "options.hpp"
#include "output.hpp"
#include "sparse_mla/rules.hpp"
#include "tamis/compressor.hpp"

namespace tamis::cli {

void print_rules(const std::vector<RuleLine>& rules) {
  std::size_t choice_width = 0, limits_width = 0;
  bool measured = false;
  for (const RuleLine& rule : rules) {
    choice_width = std::max(choice_width, rule.choice.size());
    limits_width = std::max(limits_width, rule.limits.size());
    measured = measured || rule.measured != nullptr;
  }
  print_out("rules, the first that fits is taken:\n");
  for (const RuleLine& rule : rules) {
    const char* mark = rule.chosen ? "->" : "  ";
    if (measured) {
      // Too long for a line.
      print_out("{} {:{}}  {}\n", mark, rule.choice, choice_width, rule.limits);
      const std::size_t indent = choice_width + 5;
      print_out("{:{}}{}\n", "", indent, rule.why);
      if (rule.measured != nullptr) print_out("{:{}}measured: {}\n", "", indent, rule.measured);
    } else {
      print_out("{} {:{}}  {:{}}  {}\n", mark, rule.choice, choice_width, rule.limits, limits_width, rule.why);
    }
  }
}

Json rules_json(const std::vector<RuleLine>& rules) {
  Json list = Json::array();
  for (const RuleLine& rule : rules) {
    list.push_back({{"choice", rule.choice}, {"limits", rule.limits}, {"why", rule.why}, {"chosen", rule.chosen}});
    if (rule.measured != nullptr) list.back()["measured"] = rule.measured;
  }
  return list;
}

void add_json(CLI::App* command, bool& json) { command->add_flag("--json", json, "One JSON object"); }

// A shape that was given wholly, or not at all.
bool shape_given(const std::vector<CLI::Option*>& options) {
  std::size_t given = 0;
  std::string names;
  for (const CLI::Option* option : options) {
    given += option->count() > 0 ? 1 : 0;
    names += (names.empty() ? "" : ", ") + option->get_name();
  }
  TAMIS_CHECK(given == 0 || given == options.size(), Status::kInvalidArgument, "explain: ", names,
              " go together: give all of them, or none for the whole table");
  return given > 0;
}

namespace {

// --- compressor ------------------------------------------------------------------------------------------------------

struct ExplainCompressor {
  std::vector<std::int64_t> starts, start_hi, query_lens;
  std::int64_t ratio = 128, head_dim = 512, max_drafts = 0;
  bool ring = false, capturing = false, json = false;
};

constexpr const char* kPlanMeaning[] = {
    "no token completes an entry: state is saved, pooling is skipped",
    "at least one token completes an entry: state is saved, entries are pooled and stored",
    "not known to the host: handled like some"};

// Entries that positions [start, start + tokens) complete: [first, first + count).
struct Completed {
  std::int64_t first, count;
};
Completed completed(std::int64_t start, std::int64_t tokens, std::int64_t ratio) {
  return {start / ratio, (start + tokens) / ratio - start / ratio};
}

std::string completed_text(const Completed& c, std::int64_t ratio) {
  if (c.count == 0) return "completes no entry";
  const std::int64_t position = (c.first + 1) * ratio - 1;
  if (c.count == 1) return fmt::format("completes entry {} at position {}", c.first, position);
  return fmt::format("completes {} entries, {} at position {} to {} at position {}", c.count, c.first, position,
                     c.first + c.count - 1, position + (c.count - 1) * ratio);
}

Json completed_json(const Completed& c, std::int64_t ratio) {
  if (c.count == 0) return {{"entries", 0}};
  return {{"entries", c.count},
          {"first_entry", c.first},
          {"first_position", (c.first + 1) * ratio - 1},
          {"last_entry", c.first + c.count - 1},
          {"last_position", (c.first + c.count) * ratio - 1}};
}

std::vector<RuleLine> compressor_rule_lines(const compressor::CompressorRule* chosen) {
  std::vector<RuleLine> rules;
  for (const compressor::CompressorRule& rule : compressor::compressor_rules()) {
    std::string limits = rule.ring ? "ring state" : "paged state";
    if (rule.max_saved_bytes != compressor::kAnyBytes)
      limits += fmt::format(", saves <= {} bytes", rule.max_saved_bytes);
    rules.push_back(
        {fmt::format("{}, {}", compressor::step_order_name(rule.order), compressor::state_store_name(rule.store)),
         limits, rule.why, &rule == chosen});
  }
  return rules;
}

// The kernels of CUDA, as the first one that fits is taken.
std::vector<RuleLine> compressor_cuda_rule_lines() {
  std::vector<RuleLine> rules;
  for (const compressor::CompressorCudaRule& rule : compressor::compressor_cuda_rules()) {
    std::string limits;
    const auto add = [&](const std::string& limit) { limits += (limits.empty() ? "" : ", ") + limit; };
    if (rule.max_window != compressor::kAnyNumber) add(fmt::format("window <= {} rows", rule.max_window));
    if (rule.max_head_dim != compressor::kAnyNumber) {
      add(rule.head_dim_multiple == rule.max_head_dim
              ? fmt::format("head_dim {}", rule.max_head_dim)
              : fmt::format("head_dim a multiple of {} up to {}", rule.head_dim_multiple, rule.max_head_dim));
    }
    if (rule.aligned_only) add("rows at multiples of 16 bytes");
    rules.push_back({rule.name, limits.empty() ? "any" : limits, rule.why, false});
  }
  return rules;
}

void explain_compressor(const ExplainCompressor& options, bool with_step) {
  Json json = {{"op", "compressor"}, {"device", "cpu"}};
  if (!with_step) {
    const std::vector<RuleLine> rules = compressor_rule_lines(nullptr), cuda_rules = compressor_cuda_rule_lines();
    json["rules"] = rules_json(rules);
    json["cuda_rules"] = rules_json(cuda_rules);
    if (options.json) {
      print_out("{}\n", json.dump());
    } else {
      print_out("on the CPU:\n");
      print_rules(rules);
      print_out("on CUDA, one launch a step:\n");
      print_rules(cuda_rules);
    }
    return;
  }
  const bool overlap = options.ratio == 4;
  const bool bounds = !options.start_hi.empty();
  const std::vector<std::int64_t>& hi = bounds ? options.start_hi : options.starts;
  const CompressPlan plan = compress_plan(options.starts, hi, options.query_lens, options.ratio, options.capturing);
  const std::int64_t ring = compress_ring_rows(options.ratio, overlap, options.max_drafts);
  json.update({{"ratio", options.ratio},
               {"overlap", overlap},
               {"capturing", options.capturing},
               {"plan", compressor::compress_plan_name(plan)},
               {"why", options.capturing ? "the stream is capturing a graph: a skip must not be baked in"
                                         : kPlanMeaning[static_cast<int>(plan)]},
               {"ring_rows", ring},
               {"max_drafts", options.max_drafts}});
  std::string text = fmt::format("compressor C{}{}, {} request{}{}\n", options.ratio,
                                 overlap ? " (overlapping: an entry pools two groups)" : "", options.starts.size(),
                                 options.starts.size() == 1 ? "" : "s", options.capturing ? ", capturing" : "");
  text += fmt::format("plan: {} - {}\n", compressor::compress_plan_name(plan), json["why"].get<std::string>());
  Json requests = Json::array();
  std::int64_t num_tokens = 0;
  for (std::size_t i = 0; i < options.starts.size(); ++i) {
    const std::int64_t lo = options.starts[i], tokens = options.query_lens[i];
    const std::int64_t begin = compress_state_begin(lo, options.ratio, overlap);
    const Completed at_lo = completed(lo, tokens, options.ratio), at_hi = completed(hi[i], tokens, options.ratio);
    std::int64_t most = at_lo.count;
    Json request = {{"request", i}, {"start", lo}, {"tokens", tokens}, {"state_begin", begin}};
    text += fmt::format("  request {}: ", i);
    if (!bounds) {
      request.update(completed_json(at_lo, options.ratio));
      text += fmt::format("positions [{}, {}), {}; ", lo, lo + tokens, completed_text(at_lo, options.ratio));
    } else {
      // Starts of one group complete more the later they are. A range that enters another group holds both the last
      // start of a group and the first of the next, hence both counts, unless whole groups come in any case.
      const bool both = hi[i] / options.ratio > lo / options.ratio && tokens % options.ratio != 0;
      const std::int64_t fewest = both ? tokens / options.ratio : at_lo.count;
      most = both ? fewest + 1 : at_hi.count;
      request.update({{"start_hi", hi[i]}, {"fewest_entries", fewest}, {"most_entries", most}});
      text += fmt::format("start in [{}, {}], {} tokens, completes {} entr{}; ", lo, hi[i], tokens,
                          fewest == most ? fmt::format("{}", most) : fmt::format("{} or {}", fewest, most),
                          most == 1 ? "y" : "ies");
    }
    num_tokens += tokens;
    text += most > 0 && begin < hi[i] ? fmt::format("reads state rows [{}, {})\n", begin, hi[i]) : "reads no state\n";
    requests.push_back(request);
  }
  json["requests"] = requests;
  text += fmt::format("ring: {} rows a request with up to {} rejected drafts a step\n", ring, options.max_drafts);
  // A state row is values and gates in fp32, for both halves when overlapping.
  const std::int64_t saved_bytes = num_tokens * 2 * (overlap ? 2 : 1) * options.head_dim * 4;
  text += fmt::format("state: saves {} bytes, {}\n", saved_bytes, options.ring ? "in rings" : "in pages");
  const compressor::CompressorRule& rule = compressor::choose_compressor_rule(options.ring, saved_bytes);
  const std::vector<RuleLine> rules = compressor_rule_lines(&rule);
  json["saved_bytes"] = saved_bytes;
  json["rules"] = rules_json(rules);
  if (options.json) {
    print_out("{}\n", json.dump());
    return;
  }
  print_out("{}\n", text);
  print_rules(rules);
}

void add_compressor(CLI::App* explain) {
  auto options = std::make_shared<ExplainCompressor>();
  CLI::App* command = explain->add_subcommand("compressor", "What a step completes, reads and may skip");
  command->footer(
      "Request i brings positions [start, start + query_len). Where only bounds are known, --starts has the lower ones "
      "and\n--start-hi the upper ones.\n\n"
      "Examples:\n"
      "  tamis explain compressor --starts 80,127 --query-lens 80,1\n"
      "  tamis explain compressor --starts 120 --start-hi 128 --query-lens 4 --ratio 128");
  const CLI::Range position_range(std::int64_t{0}, std::int64_t{1} << 32);  // bytes of them stay far from overflow
  auto* starts = command->add_option("--starts", options->starts, "First position of each request in this step")
                     ->delimiter(',')
                     ->check(position_range)
                     ->type_name("N,N,...");
  auto* lens = command->add_option("--query-lens", options->query_lens, "Tokens of each request in this step")
                   ->delimiter(',')
                   ->check(position_range)
                   ->type_name("N,N,...");
  command->add_option("--start-hi", options->start_hi, "Upper bounds of the starts, where they are not known exactly")
      ->delimiter(',')
      ->check(position_range)
      ->needs(starts)
      ->type_name("N,N,...");
  command->add_option("--ratio", options->ratio, "Tokens an entry: 4 (overlapping) or 128")
      ->check(CLI::IsMember({4, 128}))
      ->type_name("R")
      ->capture_default_str();
  command->add_flag("--capturing", options->capturing, "The stream is recording a graph");
  command->add_option("--max-drafts", options->max_drafts, "Draft tokens a step that may be rejected; sizes the ring")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--ring", options->ring, "State is a ring for each request instead of pages");
  command->add_option("--head-dim", options->head_dim, "Numbers an entry: 512 (main), 128 (indexer)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->type_name("D")
      ->capture_default_str();
  add_json(command, options->json);
  command->callback([options, starts, lens] { explain_compressor(*options, shape_given({starts, lens})); });
}

// --- indexer ---------------------------------------------------------------------------------------------------------

struct ExplainIndexer {
  std::int64_t rows = 0, columns = 0;
  int threads = 1;
  bool json = false;
};

void explain_indexer(const ExplainIndexer& options, bool with_shape) {
  const int workers = core::num_workers(options.threads);
  Json json = {{"op", "indexer"}, {"device", "cpu"}};
  std::string text;
  const indexer::IndexTopkRule* chosen = nullptr;
  if (with_shape) {
    chosen = &indexer::choose_index_topk_rule(options.rows, options.columns, workers);
    const bool columns = chosen->split == indexer::IndexTopkSplit::kColumns;
    const std::int64_t block =
        columns ? std::min(options.rows, indexer::kSplitRowBlock) : indexer::choose_row_block(options.rows, workers);
    json.update({{"rows", options.rows},
                 {"columns", options.columns},
                 {"threads", workers},
                 {"split", columns ? "columns" : "rows"},
                 {"why", chosen->why},
                 {"rows_a_block", block}});
    text = fmt::format(
        "index_topk of {} rows x {} columns, {} thread{}: split by {}\n  {}\n  {} row{} meet a decoded "
        "segment of keys together\n\n",
        options.rows, options.columns, workers, workers == 1 ? "" : "s", columns ? "columns" : "rows", chosen->why,
        block, block == 1 ? "" : "s");
  }
  std::vector<RuleLine> rules;
  for (const indexer::IndexTopkRule& rule : indexer::kIndexTopkRules) {
    std::string limits =
        rule.min_rows_per_worker > 0 ? fmt::format("rows >= {} x threads", rule.min_rows_per_worker) : "";
    if (rule.max_columns != indexer::kAnyColumns) {
      limits += fmt::format("{}columns <= {}", limits.empty() ? "" : ", ", rule.max_columns);
    }
    rules.push_back({rule.split == indexer::IndexTopkSplit::kRows ? "split by rows" : "split by columns",
                     limits.empty() ? "any" : limits, rule.why, &rule == chosen});
  }
  json["rules"] = rules_json(rules);
  if (options.json) {
    print_out("{}\n", json.dump());
    return;
  }
  print_out("{}", text);
  print_rules(rules);
}

void add_indexer(CLI::App* explain) {
  auto options = std::make_shared<ExplainIndexer>();
  CLI::App* command = explain->add_subcommand("indexer", "How index_topk() spreads its work");
  command->footer("Example: tamis explain indexer --rows 1 --columns 65536 --threads 4");
  auto* rows = command->add_option("--rows", options->rows, "Query rows")
                   ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
                   ->type_name("N");
  auto* columns = command->add_option("--columns", options->columns, "Keys that a row may see")
                      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
                      ->type_name("N");
  add_threads(command, options->threads);
  add_json(command, options->json);
  command->callback([options, rows, columns] { explain_indexer(*options, shape_given({rows, columns})); });
}

// --- sparse_mla ------------------------------------------------------------------------------------------------------

struct ExplainSparseMla {
  std::int64_t rows = 0, heads = 0;
  int threads = 1;
  bool json = false;
};

void explain_sparse_mla(const ExplainSparseMla& options, bool with_shape) {
  const int workers = core::num_workers(options.threads);
  Json json = {{"op", "sparse_mla"}, {"device", "cpu"}};
  std::string text;
  const sparse_mla_detail::SplitRule* chosen = nullptr;
  if (with_shape) {
    chosen = &sparse_mla_detail::choose_split(options.rows, workers);
    const sparse_mla_detail::Split split = sparse_mla_detail::split_row(options.rows, options.heads, workers);
    json.update({{"rows", options.rows},
                 {"heads", options.heads},
                 {"threads", workers},
                 {"heads_a_piece", split.heads_per_piece},
                 {"pieces", options.rows * split.pieces_per_row},
                 {"why", chosen->why}});
    text = fmt::format("sparse_mla of {} rows x {} heads, {} thread{}: {} heads a piece, {} pieces\n  {}\n\n",
                       options.rows, options.heads, workers, workers == 1 ? "" : "s", split.heads_per_piece,
                       options.rows * split.pieces_per_row, chosen->why);
  }
  std::vector<RuleLine> rules;
  for (const sparse_mla_detail::SplitRule& rule : sparse_mla_detail::kSplitRules) {
    const bool all = rule.heads_per_piece == sparse_mla_detail::kAllHeads;
    rules.push_back({all ? std::string("all heads a piece") : fmt::format("{} heads a piece", rule.heads_per_piece),
                     rule.min_rows_per_worker > 0
                         ? fmt::format("{}rows >= {} x threads", all ? "1 thread, or " : "", rule.min_rows_per_worker)
                         : "any",
                     rule.why, &rule == chosen});
  }
  json["rules"] = rules_json(rules);
  if (options.json) {
    print_out("{}\n", json.dump());
    return;
  }
  print_out("{}", text);
  print_rules(rules);
}

void add_sparse_mla(CLI::App* explain) {
  auto options = std::make_shared<ExplainSparseMla>();
  CLI::App* command = explain->add_subcommand("sparse_mla", "How attention is cut into pieces");
  command->footer("Example: tamis explain sparse_mla --rows 1 --heads 64 --threads 4");
  auto* rows = command->add_option("--rows", options->rows, "Query rows")
                   ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
                   ->type_name("N");
  auto* heads = command->add_option("--heads", options->heads, "Query heads")
                    ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
                    ->type_name("N");
  add_threads(command, options->threads);
  add_json(command, options->json);
  command->callback([options, rows, heads] { explain_sparse_mla(*options, shape_given({rows, heads})); });
}

}  // namespace

void add_explain(CLI::App& app, int& /*exit_code*/) {
  CLI::App* command =
      app.add_subcommand("explain", "Say which algorithm serves a call, or what a step compresses, and why");
  command->require_subcommand(1);
  command->footer(
      "Without a shape the whole table of rules is printed.\n\n"
      "Examples:\n"
      "  tamis explain topk --rows 64 --width 65536 --k 512\n"
      "  tamis explain topk --gpu --rows 64 --width 65536 --k 512\n"
      "  tamis explain compressor --starts 80,127 --query-lens 80,1 --ratio 128");
  add_explain_topk(command);
  add_compressor(command);
  add_indexer(command);
  add_sparse_mla(command);
}

}  // namespace tamis::cli
