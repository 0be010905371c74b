#include "engine/recall.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <string_view>

#include "core/check.hpp"

namespace tamis::engine {
namespace {

constexpr std::int64_t kMinLength = 256;

// Words that models/tiny-v4 knows as names; a text asks for at most eight.
constexpr std::array<std::string_view, 32> kNames = {
    "amber", "basil", "cedar",  "delta", "ember", "fjord",  "grove", "hazel",  "indigo", "juniper", "linden",
    "maple", "onyx",  "quartz", "raven", "sable", "topaz",  "umber", "violet", "willow", "xenon",   "zephyr",
    "atlas", "birch", "comet",  "dune",  "flint", "garnet", "iris",  "lotus",  "opal",   "storm"};

constexpr std::array<std::string_view, 40> kProse = {
    "A page is the unit in which memory is handed out, and it comes back to the pool when a request ends.",
    "The scheduler puts requests that wait for their next word in front of those that still read their prompt.",
    "If two scores are equal, the entry that was written first is taken.",
    "Each worker has a queue of its own, and an idle worker takes from the others.",
    "The log is written before the data, so that a crash leaves something to start from.",
    "A table that is too small is doubled, and every key moves once on the average.",
    "Numbers are stored with eight bits and share a scale with their neighbours.",
    "The reader waits for the writer only when the buffer is empty.",
    "In practice most of the time goes into moving bytes, not into arithmetic.",
    "A request that is cancelled gives back what it holds at the end of the step.",
    "The index is kept in memory, while the values may lie on disk.",
    "When a block is full it is sealed, summed up, and never changed again.",
    "Every message carries the number of the last one that its sender has seen.",
    "The compiler places small functions where they are called.",
    "A lock that is held for a short time should not put its waiters to sleep.",
    "The graph is recorded once and replayed with other contents of the same buffers.",
    "Clients that do not answer within a second are asked again, and then given up.",
    "The cache is split into sets, and each address belongs to one of them.",
    "It is easier to make a correct program fast than to make a fast program correct.",
    "An option that nobody sets is a constant with a long name.",
    "The first pass counts, the second pass moves, and no third pass is needed.",
    "Old versions of a row are kept until no transaction can read them.",
    "The kernel maps the file, and pages are read when they are touched.",
    "A test that cannot fail says nothing about the program.",
    "The window slides by one position for each word that is written.",
    "Rounding to the nearest even value keeps long sums free of drift.",
    "Two threads that write to the same line slow each other down, even if they never share a value.",
    "The header gives the length, and whatever follows it is checked against that.",
    "Errors are returned with the name of the argument and the value that was found.",
    "The tree is rebalanced only when one side is twice as deep as the other.",
    "A checksum is computed for each block and compared when the block is read.",
    "The client may retry a request, because the server remembers its number.",
    "Work is divided into pieces that are large enough to hide the cost of a switch.",
    "The table of contents is at the end of the file, since its size is known only then.",
    "Most programs spend their life in a few loops.",
    "The parser reads one character ahead and never goes back.",
    "A timer is set when the first packet leaves and cleared when the last answer comes.",
    "The default is chosen so that a user who knows nothing gets a right answer.",
    "Memory that is not touched costs nothing but an entry in a table.",
    "The result does not depend on how many requests share a batch."};

class Random {
 public:
  explicit Random(std::uint64_t seed) : generator_(seed) {}
  // Below `bound`; the bias of the remainder is below 2^-50 for the bounds used here.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(generator_() % static_cast<std::uint64_t>(bound));
  }
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
    }
  }

 private:
  std::mt19937_64 generator_;
};

// A line "The code of NAME is DDDDDD." as tokens.
struct CodeLine {
  std::vector<std::int32_t> before, digits, after;
  std::int64_t size() const { return static_cast<std::int64_t>(before.size() + digits.size() + after.size()); }
};

}  // namespace

RecallText make_recall_text(const model::Tokenizer& tokenizer, std::int64_t length, std::uint64_t seed) {
  TAMIS_CHECK(length >= kMinLength, Status::kInvalidArgument, "recall: length is ", length, ", must be at least ",
              kMinLength);
  Random random(seed);
  const auto encode = [&](std::string_view text) {
    std::vector<std::int32_t> tokens = tokenizer.encode(text, false);
    TAMIS_CHECK(!tokens.empty(), Status::kDataError, "recall: the tokenizer gives no tokens for '", text, "'");
    return tokens;
  };

  // A code every 128 tokens, at most eight: the model was trained on no more.
  std::vector<std::string_view> names(kNames.begin(), kNames.end());
  random.shuffle(names);
  std::vector<CodeLine> lines;
  std::int64_t line_tokens = 0;
  for (std::int64_t i = 0; i < std::clamp<std::int64_t>(length / 128, 2, 8); ++i) {
    const std::string digits = std::to_string(100000 + random.below(900000));
    lines.push_back({encode("\nThe code of " + std::string(names[static_cast<std::size_t>(i)]) + " is "),
                     encode(digits), encode(".\n")});
    line_tokens += lines.back().size();
  }

  RecallText text;
  text.tokens = tokenizer.encode("", true);  // what every text begins with
  const auto append = [&](const std::vector<std::int32_t>& tokens) {
    text.tokens.insert(text.tokens.end(), tokens.begin(), tokens.end());
  };
  const auto append_line = [&](const CodeLine& line, bool asked) {
    append(line.before);
    for (std::size_t i = 0; asked && i < line.digits.size(); ++i) {
      text.digit_positions.push_back(static_cast<std::int64_t>(text.tokens.size() + i));
    }
    append(line.digits);
    append(line.after);
  };

  // Where the told lines go, in tokens of prose before them: anywhere in the first three quarters.
  const std::int64_t prose_tokens = length - static_cast<std::int64_t>(text.tokens.size()) - 2 * line_tokens;
  // Below two tokens of prose there is no place in them.
  TAMIS_CHECK(prose_tokens >= 2, Status::kInvalidArgument, "recall: length is ", length, ", but the tokenizer takes ",
              length - prose_tokens, " tokens for what every text holds; must be at least ", length - prose_tokens + 2);
  std::vector<std::int64_t> places;
  for (std::size_t i = 0; i < lines.size(); ++i) places.push_back(random.below(prose_tokens * 3 / 4));
  std::sort(places.begin(), places.end());
  std::size_t told = 0;
  std::int64_t written = 0;
  while (written < prose_tokens) {
    while (told < lines.size() && places[told] <= written) append_line(lines[told++], false);
    std::vector<std::int32_t> sentence =
        encode(std::string(kProse[static_cast<std::size_t>(random.below(kProse.size()))]) + " ");
    const std::int64_t room = prose_tokens - written;
    if (static_cast<std::int64_t>(sentence.size()) > room) sentence.resize(static_cast<std::size_t>(room));
    append(sentence);
    written += static_cast<std::int64_t>(sentence.size());
  }
  while (told < lines.size()) append_line(lines[told++], false);
  random.shuffle(lines);
  for (const CodeLine& line : lines) append_line(line, true);
  return text;
}

std::uint64_t recall_text_seed(std::uint64_t seed, std::int64_t trial) {
  // The finaliser of splitmix64 is a bijection that changes half of the bits for a step of one.
  const auto mix = [](std::uint64_t x) {
    x += 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31);
  };
  return mix(mix(seed) + static_cast<std::uint64_t>(trial));
}

RecallResult measure_recall(model::Transformer& model, const model::Tokenizer& tokenizer, EngineConfig config,
                            std::int64_t length, std::int64_t trials, std::uint64_t seed,
                            const std::function<void(std::int64_t)>& on_trial) {
  TAMIS_CHECK(length >= kMinLength, Status::kInvalidArgument, "recall: length is ", length, ", must be at least ",
              kMinLength);
  check_length(length, 0, model.config());
  config.cache_tokens = length;
  config.max_requests = 1;
  Engine engine(model, config);
  RecallResult result;
  for (std::int64_t trial = 0; trial < trials; ++trial) {
    const RecallText text = make_recall_text(tokenizer, length, recall_text_seed(seed, trial));
    RequestSpec spec;
    spec.prompt = text.tokens;
    for (std::int64_t position : text.digit_positions) spec.scored_positions.push_back(position - 1);
    spec.on_scores = [&](std::int64_t position, std::span<const float> logits) {
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      ++result.digits;
      result.right += best == text.tokens[static_cast<std::size_t>(position + 1)];
    };
    engine.add(std::move(spec));
    engine.run();
    if (on_trial) on_trial(trial + 1);
  }
  return result;
}

}  // namespace tamis::engine
