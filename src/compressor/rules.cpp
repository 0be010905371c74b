#include "compressor/rules.hpp"

#include "core/check.hpp"

namespace tamis {

std::string compressor::compressor_unmet(const CompressorCudaRule& rule, const CompressorCase& c) {
  std::string unmet;
  const auto add = [&](const auto&... parts) { unmet += core::concat(unmet.empty() ? "" : "; ", parts...); };
  if (c.window > rule.max_window) add("the window of ", c.window, " rows must have at most ", rule.max_window);
  if (c.head_dim % rule.head_dim_multiple != 0 || c.head_dim > rule.max_head_dim) {
    add("head_dim ", c.head_dim, " must be a multiple of ", rule.head_dim_multiple, " up to ", rule.max_head_dim);
  }
  if (rule.aligned_only && !c.aligned) {
    add("kv, gate, ape and state must begin at, and have strides of, multiples of 16 bytes");
  }
  return unmet;
}

const compressor::CompressorCudaRule& compressor::compressor_cuda_rule(const CompressorCase& c,
                                                                       CompressAlgorithm forced) {
  if (forced == CompressAlgorithm::kAuto) return choose_compressor_cuda_rule(c);
  std::string unmet;
  for (const CompressorCudaRule& rule : kCompressorCudaRules) {
    if (rule.algorithm != forced) continue;
    if (rule.can(c)) return rule;
    unmet += core::concat(unmet.empty() ? "" : ", or ", compressor_unmet(rule, c));
  }
  TAMIS_CHECK(!unmet.empty(), Status::kInvalidArgument, "compress: algorithm is ", static_cast<int>(forced),
              ", must be one of CompressAlgorithm");
  core::fail(Status::kUnsupported, "compress: algorithm ", compress_algorithm_name(forced),
             " cannot serve this call: ", unmet);
}

const char* compress_algorithm_name(CompressAlgorithm algorithm) noexcept {
  if (algorithm == CompressAlgorithm::kAuto) return "auto";
  for (const compressor::CompressorCudaRule& rule : compressor::kCompressorCudaRules) {
    if (rule.algorithm == algorithm) return rule.name;
  }
  return "unknown algorithm";
}

}  // namespace tamis
