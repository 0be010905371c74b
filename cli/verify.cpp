#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <type_traits>
#include <vector>

#include "commands.hpp"
#include "core/check.hpp"
#include "device.hpp"
#include "engine/single_pass.hpp"
#include "model/safetensors.hpp"
#include "options.hpp"
#include "output.hpp"

namespace tamis::cli {
namespace {

// What a comparison may differ by: the golden values are fp32 and so are ours, summed in another order. A
// double-precision pass of the specification is 1.6e-4 (logits, worst) and 2e-5 (on average) away from them.
constexpr double kLogitsWorst = 1e-3;
constexpr double kLogitsMean = 5e-5;
constexpr double kTensorRelative = 1e-4;  // of the tensor's largest value

struct Row {
  std::string name;
  std::int64_t elements = 0;
  double worst = 0;  // largest difference
  double limit = 0;
  std::string note;
  bool ok = true;
};

struct Golden {
  model::SafetensorsReader file;

  const model::StoredTensor& tensor(const std::string& name) const {
    const model::StoredTensor* found = file.find(name);
    TAMIS_CHECK(found != nullptr, Status::kDataError, "golden file: tensor ", name, " is missing");
    return *found;
  }
  // A tensor of one dimension.
  std::vector<std::int32_t> list(const std::string& name) const {
    TAMIS_CHECK(tensor(name).shape.size() == 1, Status::kDataError, "golden file: tensor ", name, " has shape ",
                model::shape_text(tensor(name).shape), ", must have one dimension");
    return values<std::int32_t>(name, model::FileDType::kI32);
  }
  template <typename T>
  std::vector<T> values(const std::string& name, model::FileDType dtype) const {
    const model::StoredTensor& stored = tensor(name);
    TAMIS_CHECK(stored.dtype == dtype, Status::kDataError, "golden file: tensor ", name, " is ",
                model::file_dtype_name(stored.dtype), ", must be ", model::file_dtype_name(dtype));
    std::vector<T> out(stored.bytes.size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), stored.bytes.data(), out.size() * sizeof(T));
    if constexpr (std::is_floating_point_v<T>) {
      // An infinity would make a limit that anything keeps.
      for (const T value : out) {
        TAMIS_CHECK(std::isfinite(value), Status::kDataError, "golden file: tensor ", name, " holds ", value,
                    ", must be finite");
      }
    }
    return out;
  }
};

std::vector<std::int64_t> shape_of(const ConstTensorView& view) {
  std::vector<std::int64_t> shape;
  for (int d = 0; d < view.rank(); ++d) shape.push_back(view.size(d));
  return shape;
}

void check_shape(const Golden& golden, const std::string& name, const std::vector<std::int64_t>& given) {
  const std::vector<std::int64_t>& stored = golden.tensor(name).shape;
  TAMIS_CHECK(stored == given, Status::kDataError, "golden file: tensor ", name, " has shape ",
              model::shape_text(stored), ", the model gives ", model::shape_text(given));
}

// Compares what passes by with the golden file; keeps a row for each tensor.
class Comparer : public model::Observer {
 public:
  explicit Comparer(const Golden& golden) : golden_(golden) {
    if (golden.file.find("positions") != nullptr) {
      positions_ = golden.list("positions");
    }
  }

  void tensor(std::string_view name, ConstTensorView value) override {
    const model::StoredTensor* stored = golden_.file.find(name);
    if (stored == nullptr) return;
    if (name.ends_with(".topk")) compare_sets(std::string(name), value);
    else compare_values(std::string(name), value);
  }

  std::vector<Row> rows;

 private:
  void compare_values(const std::string& name, ConstTensorView value) {
    const std::vector<float> expected = golden_.values<float>(name, model::FileDType::kF32);
    const std::vector<std::int64_t>& stored = golden_.tensor(name).shape;
    const std::vector<std::int64_t> given = shape_of(value);
    // The file holds every row, or those of `positions`.
    const bool sampled = !stored.empty() && stored[0] != given[0];
    TAMIS_CHECK(stored.size() == given.size() && std::equal(stored.begin() + 1, stored.end(), given.begin() + 1) &&
                    (!sampled || stored[0] == static_cast<std::int64_t>(positions_.size())),
                Status::kDataError, "golden file: tensor ", name, " has shape ", model::shape_text(stored),
                ", the model gives ", model::shape_text(given));
    const std::int64_t count = stored[0], row_size = model::element_count(std::span(given).subspan(1));
    Row row{.name = name, .elements = count * row_size, .note = {}};
    double largest = 0;
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t from = sampled ? positions_[static_cast<std::size_t>(r)] : r;
      TAMIS_CHECK(from >= 0 && from < value.size(0), Status::kDataError, "golden file: positions holds ", from,
                  ", must be in [0, ", value.size(0), ")");
      const float* got = static_cast<const float*>(value.data()) + from * row_size;
      const float* want = expected.data() + r * row_size;
      for (std::int64_t i = 0; i < row_size; ++i) {
        const double difference = std::abs(static_cast<double>(got[i]) - want[i]);
        row.worst = std::max(row.worst, std::isnan(difference) ? INFINITY : difference);
        largest = std::max(largest, std::abs(static_cast<double>(want[i])));
      }
    }
    row.limit = kTensorRelative * largest;
    row.ok = row.worst <= row.limit;
    rows.push_back(row);
  }

  void compare_sets(const std::string& name, ConstTensorView value) {
    const std::vector<std::int32_t> expected = golden_.values<std::int32_t>(name, model::FileDType::kI32);
    check_shape(golden_, name, shape_of(value));
    const std::int64_t width = value.size(1);
    Row row{.name = name, .elements = value.numel(), .note = {}};
    for (std::int64_t r = 0; r < value.size(0); ++r) {
      const auto set = [&](const std::int32_t* from) {
        std::set<std::int32_t> out(from, from + width);
        out.erase(-1);
        return out;
      };
      row.worst += set(static_cast<const std::int32_t*>(value.data()) + r * width) != set(expected.data() + r * width);
    }
    row.ok = row.worst == 0;
    row.note = fmt::format("{} of {} rows differ", row.worst, value.size(0));
    rows.push_back(row);
  }

  const Golden& golden_;
  std::vector<std::int32_t> positions_;
};

Row compare_logits(const Golden& golden, const std::vector<float>& logits, std::int64_t tokens) {
  const std::vector<float> expected = golden.values<float>("logits", model::FileDType::kF32);
  Row row{.name = "logits", .elements = static_cast<std::int64_t>(logits.size()), .limit = kLogitsWorst, .note = {}};
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double difference = std::abs(static_cast<double>(logits[i]) - expected[i]);
    row.worst = std::max(row.worst, std::isnan(difference) ? INFINITY : difference);
    sum += difference;
  }
  const std::size_t vocab = logits.size() / static_cast<std::size_t>(tokens);
  std::int64_t argmax_differs = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += vocab) {
    const auto best = [&](const std::vector<float>& from) {
      const auto first = from.begin() + static_cast<std::int64_t>(begin);
      return std::max_element(first, first + static_cast<std::int64_t>(vocab)) - first;
    };
    argmax_differs += best(logits) != best(expected);
  }
  const double mean = sum / static_cast<double>(logits.size());
  row.ok = row.worst <= kLogitsWorst && mean <= kLogitsMean && argmax_differs == 0;
  row.note = fmt::format("mean {:.1e} (limit {:.0e}), argmax differs in {} of {} rows", mean, kLogitsMean,
                         argmax_differs, tokens);
  return row;
}

struct VerifyOptions {
  std::string model, golden, device = "cpu";
  bool json = false;
  int threads = 0;
};

void verify(const VerifyOptions& options, int& exit_code) {
  const std::unique_ptr<model::TopkBackend> topk = open_topk_backend(options.device);
  const std::unique_ptr<model::CompressorBackend> compressor = open_compressor_backend(options.device);
  const Golden golden{model::SafetensorsReader::open_file(options.golden)};
  const std::vector<std::int32_t> tokens = golden.list("input_ids");
  TAMIS_CHECK(!tokens.empty(), Status::kDataError, "golden file: input_ids is empty");
  model::Transformer transformer = model::Transformer::open(options.model);
  // Before memory is taken for the step.
  const auto count = static_cast<std::int64_t>(tokens.size());
  const model::ModelConfig& config = transformer.config();
  TAMIS_CHECK(count <= config.max_position_embeddings, Status::kDataError, "golden file: input_ids has ", count,
              " tokens, the model's limit is ", config.max_position_embeddings);
  check_shape(golden, "logits", {count, config.vocab_size});
  Comparer comparer(golden);
  const std::vector<float> logits = engine::single_pass(transformer, tokens,
                                                        {.selection = {},
                                                         .kv_precision = model::KvPrecision::kFloat32,
                                                         .observer = &comparer,
                                                         .topk_backend = topk.get(),
                                                         .compressor_backend = compressor.get(),
                                                         .num_threads = options.threads});
  comparer.rows.push_back(compare_logits(golden, logits, count));

  // A tensor of the file that never passed by would otherwise count as agreement.
  std::set<std::string, std::less<>> seen = {"input_ids", "positions"};
  for (const Row& row : comparer.rows) seen.insert(row.name);
  for (const auto& [name, tensor] : golden.file.tensors()) {
    if (!seen.contains(name)) comparer.rows.push_back({.name = name, .note = "not produced by the model", .ok = false});
  }
  if (!options.json) {
    print_out("{} tokens, fp32 caches\n{:24} {:>9} {:>10} {:>10}\n", tokens.size(), "tensor", "elements", "worst",
              "limit");
  }
  bool all_ok = true;
  for (const Row& row : comparer.rows) {
    all_ok &= row.ok;
    if (options.json) {
      print_out("{}\n", nlohmann::json({{"tensor", row.name},
                                        {"elements", row.elements},
                                        {"worst", row.worst},
                                        {"limit", row.limit},
                                        {"ok", row.ok},
                                        {"note", row.note}})
                            .dump());
    } else {
      print_out("{:24} {:9} {:10.2e} {:10.2e}  {}{}{}\n", row.name, row.elements, row.worst, row.limit,
                row.ok ? "ok" : "OUT OF TOLERANCE", row.note.empty() ? "" : "  ", row.note);
    }
  }
  if (!options.json) print_out("{}\n", all_ok ? "all within tolerance" : "some tensors are out of tolerance");
  if (!all_ok) exit_code = 1;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command = app.add_subcommand("verify", "Compare a model's tensors with a golden file");
  command->footer(
      "Runs the golden file's input_ids in one step with fp32 caches and compares every tensor that the file holds.\n"
      "Tolerances: logits 1e-3 at worst, 5e-5 on average and the same argmax in every row; top-k as sets, equal;\n"
      "every other tensor 1e-4 of its largest value. Exit code 1 if any is out.");
  add_model(command, options->model);
  command->add_option("--golden", options->golden, "Safetensors file with input_ids, logits and layers.N.* tensors")
      ->required()
      ->check(CLI::Validator(check_path, ""))
      ->type_name("FILE");
  add_threads(command, options->threads);
  add_device(command, options->device);
  command->add_flag("--json", options->json, "One JSON object a tensor");
  command->callback([options, &exit_code] { verify(*options, exit_code); });
}

}  // namespace tamis::cli
