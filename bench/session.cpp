#include "bench/session.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>

#include "core/check.hpp"
#include "core/cpu_info.hpp"
#include "core/parallel.hpp"
#include "tamis_commit.hpp"

namespace tamis::bench {
namespace {

// Four significant digits at most, without an exponent for anything that takes between 1 ns and 100 s.
std::string number(double value) {
  if (value >= 100) return fmt::format("{:.0f}", value);
  if (value >= 10) return fmt::format("{:.1f}", value);
  return fmt::format("{:.3g}", value);
}

std::string number(const std::optional<double>& value) { return value ? number(*value) : std::string("-"); }

constexpr const char* kLine = "{:69} {:>17} {:>10} {:>7} {:>9} {:>9} {:>9} {:>4} {:>8}";

const char* goal_met(const Row& row) {
  if (!row.goal_us) return "-";
  return row.timing.us <= *row.goal_us ? "yes" : "no";
}

nlohmann::json optional_json(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

// A failed write to stderr is no error: there is nowhere left to say so.
void say(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

const char* built_from() { return TAMIS_COMMIT; }

std::string shape_text(const std::vector<std::pair<std::string, std::int64_t>>& shape) {
  std::string text;
  for (const auto& [name, value] : shape) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  return text;
}

std::string case_label(const std::string& op, const std::string& dtype,
                       const std::vector<std::pair<std::string, std::int64_t>>& shape,
                       const std::string& distribution) {
  return fmt::format("{} {} {} {}", op, dtype, shape_text(shape), distribution);
}

nlohmann::ordered_json row_json(const Row& row, int num_threads, const std::optional<GpuMachine>& gpu) {
  static const std::string cpu = core::cpu_name(), simd = core::simd_target();
  nlohmann::ordered_json json;
  json["op"] = row.op;
  if (gpu) json.update({{"device", "cuda"}, {"gpu", gpu->name}, {"driver", gpu->driver}, {"cuda", gpu->cuda}});
  else json.update({{"device", "cpu"}, {"cpu", cpu}, {"simd", simd}});
  json["dtype"] = row.dtype;
  for (const auto& [name, value] : row.shape) json[name] = value;
  json["distribution"] = row.distribution;
  json["algorithm"] = row.algorithm;
  if (!gpu) json["clock"] = row.clock;
  json["us"] = row.timing.us;
  json["spread"] = row.timing.spread;
  json["floor_us"] = optional_json(row.floor_us);
  json["goal_us"] = optional_json(row.goal_us);
  json["checked"] = row.checked;
  if (!gpu) json["threads"] = num_threads;
  json["repeats"] = row.timing.repeats;
  json["commit"] = built_from();
  for (const auto& [name, value] : row.more.items()) json[name] = value;
  return json;
}

Session::Session(Options options, std::function<void(const std::string& line)> print)
    : options_(std::move(options)),
      print_(std::move(print)),
      num_threads_(core::num_workers(options_.num_threads)),
      terminal_(isatty(STDERR_FILENO) != 0) {}

void Session::clear_progress() {
  if (progress_shown_) say(fmt::format("\r{:100}\r", ""));
  progress_shown_ = false;
  std::fflush(stderr);
}

bool Session::begin(const std::string& label) {
  if (!options_.filter.empty() && label.find(options_.filter) == std::string::npos) return false;
  ++num_begun_;
  if (terminal_) {
    clear_progress();
    say(fmt::format("\r{:.98} ", label));
    std::fflush(stderr);
    progress_shown_ = true;
  }
  return true;
}

void Session::row(const Row& row) {
  clear_progress();
  if (options_.json) {
    print_(row_json(row, num_threads_, gpu_).dump());
  } else {
    if (num_rows_ == 0) {
      print_(
          fmt::format(kLine, "case", "algorithm", "us", "spread", "floor us", "of floor", "goal us", "met", "checked"));
    }
    std::string name = fmt::format("{} {} {}", row.op, row.dtype, shape_text(row.shape));
    if (row.distribution != "normal") name += " " + row.distribution;
    const std::string reached =
        row.floor_us && row.timing.us > 0 ? fmt::format("{:.0f}%", 100 * *row.floor_us / row.timing.us) : "-";
    print_(fmt::format(kLine, name, row.algorithm, number(row.timing.us),
                       fmt::format("{:.1f}%", 100 * row.timing.spread), number(row.floor_us), reached,
                       number(row.goal_us), goal_met(row), row.checked ? "yes" : "no"));
  }
  ++num_rows_;
}

void Session::wrong(const std::string& label, const std::string& why) {
  clear_progress();
  ++num_wrong_;
  say(fmt::format("tamis bench: wrong result, not timed: {}: {}\n", label, why));
}

void Session::note(const std::string& text) {
  clear_progress();
  say(fmt::format("tamis bench: {}\n", text));
}

void Session::finish(const std::vector<std::string>& notes) {
  clear_progress();
  TAMIS_CHECK(num_begun_ > 0, Status::kInvalidArgument, "bench: --filter '", options_.filter,
              "' matches no case of suite ", options_.suite);
  if (options_.json) return;
  const std::string machine = gpu_ ? fmt::format("{}, driver {}, CUDA {}", gpu_->name, gpu_->driver, gpu_->cuda)
                                   : fmt::format("{} ({}), {} thread{}", core::cpu_name(), core::simd_target(),
                                                 num_threads_, num_threads_ == 1 ? "" : "s");
  print_("");
  print_(fmt::format("{}, median of {}, spread: between the quartiles; commit {}", machine, options_.repeats,
                     built_from()));
  for (const std::string& note : notes) print_(note);
}

}  // namespace tamis::bench
