#include "bench/replay.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <deque>
#include <fstream>
#include <map>
#include <string_view>

#include "core/check.hpp"
#include "tamis/compressor.hpp"

namespace tamis::bench {
namespace {

// --- the trace ---

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

template <typename T>
bool read_whole(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Seconds that a zone is ahead of UTC: nothing or Z for none, or +hh:mm and -hh:mm.
bool read_zone(std::string_view text, double& seconds) {
  seconds = 0;
  if (text.empty() || text == "Z") return true;
  int hours = 0, minutes = 0;
  if (text.size() != 6 || (text[0] != '+' && text[0] != '-') || text[3] != ':' || text[1] == '-' || text[4] == '-' ||
      !read_whole(text.substr(1, 2), hours) || !read_whole(text.substr(4, 2), minutes) || hours > 23 || minutes > 59) {
    return false;
  }
  seconds = (text[0] == '-' ? -60.0 : 60.0) * (hours * 60 + minutes);
  return true;
}

// Seconds since an epoch of the trace's own.
bool read_timestamp(std::string_view text, double& seconds) {
  if (read_whole(text, seconds)) return std::isfinite(seconds);
  constexpr std::string_view kShape = "dddd-dd-dd?dd:dd:dd";
  if (text.size() < kShape.size()) return false;
  for (std::size_t i = 0; i < kShape.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (kShape[i] == 'd' ? !digit : kShape[i] == '?' ? text[i] != ' ' && text[i] != 'T' : text[i] != kShape[i]) {
      return false;
    }
  }
  const auto number = [&](std::size_t at, std::size_t digits) {
    int value = 0;
    read_whole(text.substr(at, digits), value);
    return value;
  };
  const std::chrono::year_month_day date{std::chrono::year(number(0, 4)),
                                         std::chrono::month(static_cast<unsigned>(number(5, 2))),
                                         std::chrono::day(static_cast<unsigned>(number(8, 2)))};
  const int hour = number(11, 2), minute = number(14, 2), second = number(17, 2);
  if (!date.ok() || hour > 23 || minute > 59 || second > 60) return false;
  double fraction = 0;
  std::string_view rest = text.substr(kShape.size());
  if (rest.starts_with('.')) {
    const std::size_t end = std::min(rest.find_first_not_of("0123456789", 1), rest.size());
    if (end < 2 || !read_whole(rest.substr(0, end), fraction)) return false;
    rest.remove_prefix(end);
  }
  double ahead = 0;
  seconds = static_cast<double>(std::chrono::sys_days(date).time_since_epoch().count()) * 86400.0 + hour * 3600.0 +
            minute * 60.0 + second + fraction;
  if (!read_zone(rest, ahead)) return false;
  seconds -= ahead;
  return true;
}

// --- the batching ---

struct Running {
  std::int64_t prompt = 0, total = 0;  // tokens that it will process
  std::int64_t done = 0;
};

// What a step consists of, for one ratio.
struct StepShape {
  std::int64_t tokens = 0, entries = 0;
  bool only_decode = false;
};

// Microseconds of a step of one compressor: between and past the measured numbers of tokens on straight lines.
class Costs {
 public:
  // Decode saves its tokens, and pools entries at what they cost where every request completes one. Chunks that
  // complete entries are costed as prefill.
  double of_step(CompressorKind kind, StepForm form, bool graph, const StepShape& s) const {
    if (s.entries > 0 && !s.only_decode) return us(kind, "prefill", form, graph, s.tokens);
    double sum = us(kind, "save_only", form, graph, s.tokens);
    if (s.entries > 0) {
      sum +=
          std::max(0.0, us(kind, "boundary", form, graph, s.entries) - us(kind, "save_only", form, graph, s.entries));
    }
    return sum;
  }

 private:
  static double us(CompressorKind kind, std::string_view step, StepForm form, bool graph, std::int64_t tokens) {
    struct Point {
      double tokens = 0, us = 0;
    } before, below;  // the two largest numbers of tokens measured that are too small
    int found = 0;
    const auto on_line = [&](const Point& a, const Point& b) {
      return a.us + (static_cast<double>(tokens) - a.tokens) / (b.tokens - a.tokens) * (b.us - a.us);
    };
    for (const CompressorCost& cost : kCompressorCosts) {
      if (cost.kind != kind || cost.form != form || cost.step != step) continue;
      const Point here{static_cast<double>(cost.tokens), graph ? cost.graph_us : cost.eager_us};
      if (cost.tokens >= tokens) return found == 0 ? here.us : on_line(below, here);
      before = below;
      below = here;
      ++found;
    }
    TAMIS_CHECK(found > 0, Status::kInternal, "replay: no measured cost for ", step);
    if (found == 1) return below.us;
    return std::max(below.us, on_line(before, below));  // past the largest: as it grew up to there
  }
};

struct FormSpec {
  const char* name;
  StepForm with_entries, without;  // what is launched where the host sees that no entry completes
  std::int64_t launches, launches_without;
};
constexpr FormSpec kForms[] = {
    {"three_launches", StepForm::kThreeLaunches, StepForm::kThreeLaunches, 3, 3},
    {"three_launches_skip", StepForm::kThreeLaunches, StepForm::kThreeLaunchesSkip, 3, 1},
    {"fused", StepForm::kFused, StepForm::kFused, 1, 1},
    {"fused_skip", StepForm::kFused, StepForm::kFusedSkip, 1, 1},
};

}  // namespace

std::vector<TraceRequest> read_trace(const std::filesystem::path& file, std::int64_t most) {
  std::ifstream in(file);
  TAMIS_CHECK(in.good() && !std::filesystem::is_directory(file), Status::kInvalidArgument, file.string(),
              ": cannot be read");
  std::string line;
  const auto take_line = [&] {
    if (!std::getline(in, line)) return false;
    if (line.ends_with('\r')) line.pop_back();
    return true;
  };
  TAMIS_CHECK(take_line(), Status::kInvalidArgument, file.string(),
              ": is empty, must begin with a line of column names");
  if (line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
  constexpr std::string_view kColumns[] = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"};
  std::size_t columns[3];
  const std::vector<std::string_view> names = fields_of(line);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto found = std::find(names.begin(), names.end(), kColumns[i]);
    TAMIS_CHECK(found != names.end(), Status::kInvalidArgument, file.string(), ": line 1 has no column ", kColumns[i],
                ", it is: ", line);
    columns[i] = static_cast<std::size_t>(found - names.begin());
  }
  const std::size_t width = names.size();
  std::vector<TraceRequest> requests;
  for (std::int64_t number = 2; take_line(); ++number) {
    if (line.empty()) continue;
    if (most > 0 && static_cast<std::int64_t>(requests.size()) == most) break;
    const std::vector<std::string_view> fields = fields_of(line);
    TAMIS_CHECK(fields.size() == width, Status::kInvalidArgument, file.string(), ": line ", number, " has ",
                fields.size(), " columns, must have ", width);
    TraceRequest request;
    const auto fail = [&](std::size_t column, const char* expected) {
      core::fail(Status::kInvalidArgument, file.string(), ": line ", number, ": ", kColumns[column], " is \"",
                 fields[columns[column]], "\", must be ", expected);
    };
    if (!read_timestamp(fields[columns[0]], request.arrival_s))
      fail(0, "a time like 2023-11-16 18:17:03.98 or seconds");
    constexpr std::int64_t kMost = std::int64_t{1} << 24;  // longer than any context; a step a token takes its time
    const auto count = [&](std::size_t column, std::int64_t& value) {
      if (!read_whole(fields[columns[column]], value) || value < 0 || value > kMost) {
        fail(column, "a whole number from 0 to 16777216");
      }
    };
    count(1, request.prompt_tokens);
    count(2, request.generated_tokens);
    requests.push_back(request);
  }
  TAMIS_CHECK(!requests.empty(), Status::kInvalidArgument, file.string(), ": has no requests");
  std::stable_sort(requests.begin(), requests.end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_s < b.arrival_s; });
  const double first = requests.front().arrival_s;
  for (TraceRequest& request : requests) request.arrival_s -= first;
  return requests;
}

ReplayResult replay(const std::vector<TraceRequest>& trace, const ReplayOptions& options) {
  TAMIS_CHECK(options.max_requests >= 1 && options.max_tokens >= options.max_requests, Status::kInvalidArgument,
              "replay: max_requests is ", options.max_requests, " and max_tokens ", options.max_tokens,
              ", must be at least 1 and at least as many tokens as requests");
  TAMIS_CHECK(options.step_ms > 0 && std::isfinite(options.step_ms), Status::kInvalidArgument, "replay: step_ms is ",
              options.step_ms, ", must be above 0");
  const Costs costs;
  ReplayResult result;
  for (const char* mode : {"none", "piecewise", "full"}) {
    for (const FormSpec& form : kForms) result.forms.push_back({mode, form.name, {}, {}});
  }

  std::vector<Running> running;
  std::size_t next = 0;
  double now_s = 0;
  std::int64_t batch_sum = 0;
  std::vector<std::int64_t> starts, counts;
  while (next < trace.size() || !running.empty()) {
    // 1. Who takes part: running requests first, then those that have come, while there is room.
    if (running.empty()) now_s = std::max(now_s, trace[next].arrival_s);
    while (next < trace.size() && trace[next].arrival_s <= now_s &&
           static_cast<std::int64_t>(running.size()) < options.max_requests) {
      const TraceRequest& request = trace[next++];
      ++result.requests;
      // The last generated token is not processed any more.
      const std::int64_t total = request.prompt_tokens + std::max<std::int64_t>(0, request.generated_tokens - 1);
      if (total > 0) running.push_back({request.prompt_tokens, total, 0});
    }
    if (running.empty()) continue;
    starts.clear();
    counts.clear();
    std::int64_t room = options.max_tokens;
    std::int64_t decoding = 0;
    for (const Running& r : running) decoding += r.done >= r.prompt;
    room -= decoding;
    for (Running& r : running) {
      const bool decode = r.done >= r.prompt;
      const std::int64_t count = decode ? 1 : std::min(r.prompt - r.done, room);
      if (!decode) room -= count;
      if (count == 0) continue;
      starts.push_back(r.done);
      counts.push_back(count);
      r.done += count;
    }
    std::int64_t tokens = 0;
    for (const std::int64_t count : counts) tokens += count;

    // 2. The plan of the step, and what each form launches for it in each mode.
    const bool only_decode = tokens == static_cast<std::int64_t>(counts.size());
    struct Ratio {
      std::int64_t ratio, layers;
      bool indexer;
      ReplayLaunches ReplayForm::*launches;
    };
    for (const Ratio& r : {Ratio{128, options.c128_layers, false, &ReplayForm::c128},
                           Ratio{4, options.c4_layers, true, &ReplayForm::c4}}) {
      StepShape shape{tokens, 0, only_decode};
      for (std::size_t i = 0; i < starts.size(); ++i) {
        shape.entries += (starts[i] + counts[i]) / r.ratio - starts[i] / r.ratio;
      }
      const bool empty = shape.entries == 0;
      if (empty) ++(r.ratio == 128 ? result.c128_empty_steps : result.c4_empty_steps);
      for (ReplayForm& line : result.forms) {
        const auto* spec =
            std::find_if(std::begin(kForms), std::end(kForms), [&](const FormSpec& f) { return line.form == f.name; });
        // A full graph takes steps of one token a request, as engines record them; the others run piece by piece.
        const bool graph = line.mode == "full" && only_decode;
        const CompressPlan plan = compress_plan(starts, counts, r.ratio, graph);
        const bool skip = plan == CompressPlan::kNone;
        const StepForm form = skip ? spec->without : spec->with_entries;
        const std::int64_t made = skip ? spec->launches_without : spec->launches;
        ReplayLaunches& sum = line.*r.launches;
        const std::int64_t compressors = r.layers * (r.indexer ? 2 : 1);
        sum.made += compressors * made;
        sum.skipped += compressors * (spec->launches - made);
        // Launches beside the one that saves, for nothing. One launch in all is never for nothing: it saves.
        if (empty) sum.wasted += compressors * (made - 1);
        const auto us = [&](CompressorKind kind) { return costs.of_step(kind, form, graph, shape); };
        if (r.indexer) {
          sum.us += static_cast<double>(r.layers) * (us(CompressorKind::kC4) + us(CompressorKind::kIndexer));
        } else {
          sum.us += static_cast<double>(r.layers) * us(CompressorKind::kC128);
        }
      }
    }
    std::erase_if(running, [](const Running& r) { return r.done >= r.total; });
    ++result.steps;
    result.tokens += tokens;
    batch_sum += static_cast<std::int64_t>(counts.size());
    now_s += options.step_ms / 1000;
  }
  if (result.steps > 0) result.mean_batch = static_cast<double>(batch_sum) / static_cast<double>(result.steps);
  return result;
}

}  // namespace tamis::bench
