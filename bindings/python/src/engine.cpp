#include "engine/engine.hpp"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <memory>
#include <mutex>

#include "call.hpp"
#include "engine/compressor_backend.hpp"
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

std::filesystem::path path_of(nb::handle model) {
  std::filesystem::path path;
  if (nb::try_cast(model, path)) return path;
  TAMIS_CHECK(PyUnicode_Check(model.ptr()) == 0, Status::kInvalidArgument,
              "Engine: model has a null character or a lone surrogate, must be a path");
  fail_type("Engine: model is ", name_of_type(model), ", must be a path");
}

// A model, its tokenizer and the engine that runs it. Steps run without the interpreter's lock; whoever comes meanwhile
// from another thread waits, without that lock, too. Callbacks of a step may call back in, so the mutex is recursive.
class PyEngine {
 public:
  PyEngine(nb::handle directory, nb::handle kv_cache, nb::handle device, nb::handle index_topk,
           nb::handle prefill_chunk, nb::handle step_tokens, nb::handle cache_tokens, nb::handle max_requests,
           nb::handle num_threads)
      : topk_backend_(engine::make_topk_backend(Call("Engine").parse_device(device, "device"))),
        compressor_backend_(engine::make_compressor_backend(Call("Engine").parse_device(device, "device"))),
        tokenizer_(model::Tokenizer::open(path_of(directory))),
        model_(model::Transformer::open(path_of(directory))) {
    const Call call("Engine");
    engine::EngineConfig config;
    config.kv_precision = call.choice(kv_cache, "kv_cache", kKvPrecisions);
    config.prefill_chunk = call.integer(prefill_chunk, "prefill_chunk");
    config.step_tokens = call.integer(step_tokens, "step_tokens");
    config.cache_tokens = call.integer(cache_tokens, "cache_tokens");
    config.max_requests = call.integer(max_requests, "max_requests");
    config.selection.topk = call.integer(index_topk, "index_topk");
    config.num_threads = call.threads(num_threads);
    config.topk_backend = topk_backend_.get();
    config.compressor_backend = compressor_backend_.get();
    engine_ = std::make_unique<engine::Engine>(model_, config);
  }

  std::int64_t add(nb::handle prompt, nb::handle max_new_tokens, nb::handle temperature, nb::handle top_p,
                   nb::handle seed, nb::handle stop_tokens, nb::object on_token) {
    const Call call("Engine.add");
    engine::RequestSpec spec;
    spec.prompt = PyUnicode_Check(prompt.ptr()) != 0 ? tokenizer_.encode(call.string(prompt, "prompt"))
                                                     : call.integers<std::int32_t>(prompt, "prompt");
    spec.max_new_tokens = call.integer(max_new_tokens, "max_new_tokens");
    spec.sampling = {call.number(temperature, "temperature"), call.number(top_p, "top_p"),
                     call.unsigned_integer(seed, "seed")};
    spec.stop_tokens =
        stop_tokens.is_none() ? config().eos_token_ids : call.integers<std::int32_t>(stop_tokens, "stop_tokens");
    for (std::int32_t token : spec.stop_tokens) {
      TAMIS_CHECK(token >= 0 && token < config().vocab_size, Status::kInvalidArgument, "Engine.add: stop_tokens has ",
                  token, ", must be tokens in [0, ", config().vocab_size, ")");
    }
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

  bool cancel(nb::handle request) {
    const std::int64_t id = Call("Engine.cancel").integer(request, "id");
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
  std::unique_ptr<model::CompressorBackend> compressor_backend_;
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
  const auto any = nb::arg().none();  // what an argument must be is said by Call, with its name
  nb::class_<PyEngine>(m, "Engine")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle,
                    nb::handle>(),
           any, any, any, any, any, any, any, any, any)
      .def("add", &PyEngine::add, any, any, any, any, any, any, any)
      .def("step", &PyEngine::step)
      .def("cancel", &PyEngine::cancel, any)
      .def("num_unfinished", &PyEngine::num_unfinished)
      .def("stats", &stats_of)
      .def(
          "encode",
          [](const PyEngine& self, nb::handle text) {
            return self.tokenizer().encode(Call("Engine.encode").string(text, "text"));
          },
          any)
      .def(
          "decode",
          [](const PyEngine& self, nb::handle tokens) {
            return self.tokenizer().decode(Call("Engine.decode").integers<std::int32_t>(tokens, "tokens"));
          },
          any)
      .def_prop_ro("eos_token_ids", [](const PyEngine& self) { return self.config().eos_token_ids; })
      .def_prop_ro("vocab_size", [](const PyEngine& self) { return self.config().vocab_size; });
  nb::class_<PyStreamDecoder>(m, "StreamDecoder")
      .def(nb::init<const PyEngine&>())
      .def("push", &PyStreamDecoder::push)
      .def("finish", &PyStreamDecoder::finish);
}

}  // namespace tamis::python
