#include "engine/engine.hpp"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <charconv>
#include <memory>
#include <mutex>

#include "call.hpp"
#include "engine/topk_backend.hpp"
#include "model/tokenizer.hpp"
#include "operations.hpp"

namespace tamis::python {
namespace {

constexpr std::array kKvPrecisions = {
    std::pair{std::string_view("fp32"), model::KvPrecision::kFloat32},
    std::pair{std::string_view("bf16"), model::KvPrecision::kBFloat16},
    std::pair{std::string_view("fp8"), model::KvPrecision::kFloat8},
};

Device parse_device(std::string_view text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {Device::Kind::kCuda, 0};
  constexpr std::string_view kPrefix = "cuda:";
  Device device{Device::Kind::kCuda, -1};
  if (text.starts_with(kPrefix)) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + kPrefix.size(), end, device.index);
    if (error != std::errc() || stop != end) device.index = -1;
  }
  TAMIS_CHECK(device.index >= 0, Status::kInvalidArgument, "Engine: device is '", text,
              "', must be 'cpu', 'cuda' or 'cuda:N'");
  return device;
}

// A model, its tokenizer and the engine that runs it. Steps run without the interpreter's lock; whoever comes meanwhile
// from another thread waits, without that lock, too. Callbacks of a step may call back in, so the mutex is recursive.
class PyEngine {
 public:
  PyEngine(const std::filesystem::path& directory, nb::handle kv_cache, std::string_view device,
           std::int64_t index_topk, std::int64_t prefill_chunk, std::int64_t step_tokens, std::int64_t cache_tokens,
           std::int64_t max_requests, int num_threads)
      : topk_backend_(engine::make_topk_backend(parse_device(device))),
        tokenizer_(model::Tokenizer::open(directory)),
        model_(model::Transformer::open(directory)) {
    engine::EngineConfig config;
    config.kv_precision = Call("Engine").choice(kv_cache, "kv_cache", kKvPrecisions);
    config.prefill_chunk = prefill_chunk;
    config.step_tokens = step_tokens;
    config.cache_tokens = cache_tokens;
    config.max_requests = max_requests;
    config.selection.topk = index_topk;
    config.num_threads = num_threads;
    config.topk_backend = topk_backend_.get();
    engine_ = std::make_unique<engine::Engine>(model_, config);
  }

  std::int64_t add(std::vector<std::int32_t> prompt, std::int64_t max_new_tokens, double temperature, double top_p,
                   std::uint64_t seed, std::vector<std::int32_t> stop_tokens, nb::object on_token) {
    engine::RequestSpec spec;
    spec.prompt = std::move(prompt);
    spec.max_new_tokens = max_new_tokens;
    spec.sampling = {temperature, top_p, seed};
    spec.stop_tokens = std::move(stop_tokens);
    if (!on_token.is_none()) {
      // The request dies inside a step, where the interpreter's lock is not held.
      const std::shared_ptr<nb::object> callback(new nb::object(std::move(on_token)), [](nb::object* held) {
        const nb::gil_scoped_acquire locked;
        delete held;
      });
      spec.on_token = [callback](std::int32_t token) {
        const nb::gil_scoped_acquire locked;
        (*callback)(token);
      };
    }
    const nb::gil_scoped_release unlocked;
    const std::scoped_lock lock(mutex_);
    return engine_->add(std::move(spec));
  }

  bool step() {
    const nb::gil_scoped_release unlocked;
    const std::scoped_lock lock(mutex_);
    return engine_->step();
  }

  bool cancel(std::int64_t id) {
    const nb::gil_scoped_release unlocked;
    const std::scoped_lock lock(mutex_);
    return engine_->cancel(id);
  }

  std::int64_t num_unfinished() {
    const nb::gil_scoped_release unlocked;
    const std::scoped_lock lock(mutex_);
    return engine_->num_unfinished();
  }

  engine::EngineStats stats() {
    const nb::gil_scoped_release unlocked;
    const std::scoped_lock lock(mutex_);
    return engine_->stats();
  }

  const model::ModelConfig& config() const { return model_.config(); }
  const model::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  std::recursive_mutex mutex_;
  std::unique_ptr<model::TopkBackend> topk_backend_;
  model::Tokenizer tokenizer_;
  model::Transformer model_;
  std::unique_ptr<engine::Engine> engine_;
};

nb::dict stats_of(PyEngine& self) {
  const engine::EngineStats s = self.stats();
  nb::dict stats;
  stats["steps"] = s.steps;
  stats["prompt_tokens"] = s.prompt_tokens;
  stats["new_tokens"] = s.new_tokens;
  stats["prefill_seconds"] = s.prefill_seconds;
  stats["decode_seconds"] = s.decode_seconds;
  stats["c4_skipped"] = s.c4_skipped;
  stats["c128_skipped"] = s.c128_skipped;
  return stats;
}

// The text that tokens add, piece by piece: a character spread over tokens comes out whole.
class PyStreamDecoder {
 public:
  explicit PyStreamDecoder(const PyEngine& engine) : decoder_(engine.tokenizer()) {}
  std::string push(std::int32_t token) { return decoder_.push(token); }
  std::string finish() { return decoder_.finish(); }

 private:
  model::StreamDecoder decoder_;
};

}  // namespace

void bind_engine(nb::module_& m) {
  nb::class_<PyEngine>(m, "Engine")
      .def(nb::init<const std::filesystem::path&, nb::handle, std::string_view, std::int64_t, std::int64_t,
                    std::int64_t, std::int64_t, std::int64_t, int>())
      .def("add", &PyEngine::add, nb::arg("prompt"), nb::arg("max_new_tokens"), nb::arg("temperature"),
           nb::arg("top_p"), nb::arg("seed"), nb::arg("stop_tokens"), nb::arg("on_token").none())
      .def("step", &PyEngine::step)
      .def("cancel", &PyEngine::cancel)
      .def("num_unfinished", &PyEngine::num_unfinished)
      .def("stats", &stats_of)
      .def("encode", [](const PyEngine& self, std::string_view text) { return self.tokenizer().encode(text); })
      .def("decode",
           [](const PyEngine& self, const std::vector<std::int32_t>& ids) { return self.tokenizer().decode(ids); })
      .def_prop_ro("eos_token_ids", [](const PyEngine& self) { return self.config().eos_token_ids; })
      .def_prop_ro("vocab_size", [](const PyEngine& self) { return self.config().vocab_size; });
  nb::class_<PyStreamDecoder>(m, "StreamDecoder")
      .def(nb::init<const PyEngine&>())
      .def("push", &PyStreamDecoder::push)
      .def("finish", &PyStreamDecoder::finish);
}

}  // namespace tamis::python
