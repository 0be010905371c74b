#pragma once

// The benchmarks of `tamis bench`, one an operation. Each works off its cases: builds random inputs, compares the
// result with the reference, times it beside its floor, and hands rows to the session.

#include <cstdint>
#include <filesystem>

#include "bench/session.hpp"
#include "model/step.hpp"
#include "tamis/topk.hpp"

namespace tamis::bench {

/// Suites that every operation has: "targets" is what measurements are kept of, "smoke" takes a second.
void bench_topk(Session& session);
void bench_compressor(Session& session);
void bench_indexer(Session& session);
void bench_sparse_mla(Session& session);

struct TopkGpuOptions {
  TopkAlgorithm algorithm = TopkAlgorithm::kAuto;  ///< Forced: cases that it cannot serve are left out, and said so.
  bool torch = true;                               ///< torch.topk after it, where python3 has torch.
};

/// Top-k on the first GPU.
/// @throws Error kUnsupported if this binary has no kernels for it, kDeviceError if there is none.
void bench_topk_gpu(Session& session, const TopkGpuOptions& options);

/// Steps of a compressor on the first GPU, in every form.
/// @throws Error as bench_topk_gpu().
void bench_compressor_gpu(Session& session);

struct EngineOptions {
  std::filesystem::path model;
  std::int64_t context = 2048;
  std::int64_t new_tokens = 32;
  std::int64_t prefill_chunk = 512;
  int runs = 3;
  model::KvPrecision kv_precision = model::KvPrecision::kFloat32;
  const char* kv_name = "fp32";
};

/// Token i of the made-up prompt of `bench engine`: linear congruential, so that other programs can run the same text.
/// x_0 = 12345, x_{i+1} = (1103515245 x_i + 12345) mod 2^31, token = floor(x_{i+1} / 2^16) mod vocab_size.
std::vector<std::int32_t> engine_prompt(std::int64_t tokens, std::int64_t vocab_size);

/// Prefill and decode of one request of a whole model, with memory.
void bench_engine(Session& session, const EngineOptions& options);

}  // namespace tamis::bench
