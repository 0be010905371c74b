#pragma once

// One run of `tamis bench`: what was asked for, and where rows go.

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/timing.hpp"

namespace tamis::bench {

/// One measurement. As JSON it is a flat object: op, the shape by name, and the fields below.
struct Row {
  std::string op, dtype;
  std::vector<std::pair<std::string, std::int64_t>> shape;
  std::string distribution;  ///< of the input's numbers
  std::string algorithm;
  Timing timing;
  std::optional<double> floor_us;  ///< least time that the machine allows; how it is measured is in the footer
  std::optional<double> goal_us;   ///< what docs and issue ask for, where they do
  std::string clock = "wall";      ///< "thread" where only time on a core counts
  bool checked = false;            ///< the result was compared with the reference before timing
  nlohmann::ordered_json more = nlohmann::ordered_json::object();  ///< further fields of an operation
};

/// The GPU that rows are measured on, and what drives it. Versions as text: "580.65.06", "13.0".
struct GpuMachine {
  std::string name, driver, cuda;
};

struct Options {
  std::string suite = "targets";
  std::string filter;  ///< only cases whose label contains it
  int num_threads = 1;
  int repeats = 21;
  bool json = false;
};

/// Prints rows as they come: a table for people, or JSON lines. Progress goes to stderr, on a terminal only.
class Session {
 public:
  /// @param print  Takes every line of the output, without its newline.
  Session(Options options, std::function<void(const std::string& line)> print);

  const Options& options() const { return options_; }
  /// Threads as a number: 0 of the options becomes what the arena has.
  int num_threads() const { return num_threads_; }
  TimingClock clock() const { return clock_for(num_threads_); }
  /// Rows are of this GPU from here on, and not of the processor.
  void use_gpu(GpuMachine gpu) { gpu_ = std::move(gpu); }
  /// True if the case is asked for; says on stderr that it is being worked on.
  bool begin(const std::string& label);
  /// Prints a row. The floor's share of the time is what is reached.
  void row(const Row& row);
  /// A result that differs from its reference: said on stderr, counted, and never timed.
  void wrong(const std::string& label, const std::string& why);
  /// Says on stderr what is left out, and why.
  void note(const std::string& text);
  /// Ends the table with its notes. Cases asked for by a filter that matches none are an error.
  /// @throws Error kInvalidArgument if no case was begun.
  void finish(const std::vector<std::string>& notes);

  int num_wrong() const { return num_wrong_; }
  int num_rows() const { return num_rows_; }

 private:
  void clear_progress();

  Options options_;
  std::function<void(const std::string&)> print_;
  int num_threads_;
  std::optional<GpuMachine> gpu_;
  bool terminal_, progress_shown_ = false;
  int num_begun_ = 0, num_rows_ = 0, num_wrong_ = 0;
};

/// The JSON object of a row, with the machine and commit it was measured on. Threads and clock are of the processor
/// only.
nlohmann::ordered_json row_json(const Row& row, int num_threads, const std::optional<GpuMachine>& gpu = {});

/// Shape as in the table: "rows 1, width 262144, k 512".
std::string shape_text(const std::vector<std::pair<std::string, std::int64_t>>& shape);

/// What a filter is matched with: op, dtype, shape and distribution, separated by spaces.
std::string case_label(const std::string& op, const std::string& dtype,
                       const std::vector<std::pair<std::string, std::int64_t>>& shape, const std::string& distribution);

/// The commit this was built from, with "-dirty" when files differed from it; "unknown" outside git.
const char* built_from();

}  // namespace tamis::bench
