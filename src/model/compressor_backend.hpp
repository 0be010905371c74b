#pragma once

#include <string>

#include "tamis/compressor.hpp"

namespace tamis::model {

/// Who runs the compressors of a step in place of tamis::compress(), a GPU for instance. The result is the same.
class CompressorBackend {
 public:
  CompressorBackend() = default;
  CompressorBackend(const CompressorBackend&) = delete;
  CompressorBackend& operator=(const CompressorBackend&) = delete;
  virtual ~CompressorBackend() = default;

  /// Does what tamis::compress(args) would. All memory of args is the host's; args.workspace is not needed. `ape`,
  /// `norm_weight` and `cos_sin` are a model's: their contents stay the same as long as the backend lives.
  virtual void compress(const CompressArgs& args) = 0;

  /// Where it runs, e.g. "cuda:0 (NVIDIA H200)".
  virtual std::string where() const = 0;
};

}  // namespace tamis::model
