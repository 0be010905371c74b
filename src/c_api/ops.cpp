#include "tamis/ops.hpp"

#include "c_api/args.hpp"
#include "c_api/guard.hpp"

namespace tamis::c_api {
namespace {

TensorView view(Origin origin, const tamis_tensor* from) {
  return from == nullptr ? TensorView{} : tensor(origin, *from);
}

}  // namespace
}  // namespace tamis::c_api

using namespace tamis::c_api;  // NOLINT(google-build-using-namespace): the entries below are the end of the file

extern "C" {

tamis_status tamis_rmsnorm(const tamis_tensor* x, const tamis_tensor* weight, float eps,
                           const tamis_tensor* y) noexcept {
  return guarded([&] {
    tamis::rmsnorm(view({"rmsnorm", "x"}, x), view({"rmsnorm", "weight"}, weight), eps, view({"rmsnorm", "y"}, y));
  });
}

tamis_status tamis_rope_frequencies(double base, const tamis_rope_scaling* scaling, int64_t num_frequencies,
                                    double* frequencies) noexcept {
  return guarded([&] {
    tamis::RopeScaling bent;
    if (scaling != nullptr) {
      bent = {scaling->factor, scaling->original_max_positions, scaling->beta_fast, scaling->beta_slow};
    }
    tamis::rope_frequencies(base, bent,
                            span("rope_frequencies", "num_frequencies", "frequencies", frequencies, num_frequencies));
  });
}

tamis_status tamis_rope_table(const double* frequencies, int64_t num_frequencies,
                              const tamis_tensor* cos_sin) noexcept {
  return guarded([&] {
    tamis::rope_table(span("rope_table", "num_frequencies", "frequencies", frequencies, num_frequencies),
                      view({"rope_table", "cos_sin"}, cos_sin));
  });
}

tamis_status tamis_rope(const tamis_tensor* x, const tamis_tensor* positions, const tamis_tensor* cos_sin,
                        int32_t inverse) noexcept {
  return guarded([&] {
    tamis::rope(view({"rope", "x"}, x), view({"rope", "positions"}, positions), view({"rope", "cos_sin"}, cos_sin),
                inverse != 0);
  });
}

tamis_status tamis_hadamard(const tamis_tensor* x) noexcept {
  return guarded([&] { tamis::hadamard(view({"hadamard", "x"}, x)); });
}

}  // extern "C"
