#include "tamis/cache.hpp"

#include "call.hpp"
#include "operations.hpp"

namespace tamis::python {
namespace {

constexpr std::initializer_list<DType> kFloatOrBf16 = {DType::kFloat32, DType::kBFloat16};
constexpr std::initializer_list<DType> kInt32Or64 = {DType::kInt32, DType::kInt64};

void write(nb::handle cache, nb::handle rows, nb::handle slots) {
  Call call("cache_write");
  const ConstTensorView values = call.input(rows, "rows", kFloatOrBf16);
  const ConstTensorView where = call.input(slots, "slots", kInt32Or64);
  const PagedCache paged = call.output_cache(cache, "cache");
  call.check_overlaps();
  call.run([&] { cache_write(values, where, paged); });
}

nb::object read(nb::handle cache, nb::handle slots, nb::handle out) {
  Call call("cache_read");
  const ConstTensorView where = call.input(slots, "slots", kInt32Or64);
  const ConstPagedCache paged = call.input_cache(cache, "cache");
  TAMIS_CHECK(where.rank() == 1, Status::kInvalidArgument, "cache_read: slots has ", where.rank(),
              " dimensions, must have 1");
  const Output rows =
      call.output_or_new(out, "out", DType::kFloat32, {where.size(0), paged.head_dim}, {DType::kBFloat16});
  call.check_overlaps();
  call.run([&] { cache_read(paged, where, rows.view); });
  return call.result(rows);
}

std::int64_t page_bytes(nb::handle layout, nb::handle head_dim, nb::handle page_size) {
  const Call call("cache_page_bytes");
  return cache_page_bytes(call.choice(layout, "layout", kCacheLayouts), call.integer(head_dim, "head_dim"),
                          call.integer(page_size, "page_size"));
}

std::int64_t entry_bytes(nb::handle layout, nb::handle head_dim) {
  const Call call("cache_entry_bytes");
  return cache_entry_bytes(call.choice(layout, "layout", kCacheLayouts), call.integer(head_dim, "head_dim"));
}

}  // namespace

void bind_cache(nb::module_& m) {
  define(m, "cache_write", &write);
  define(m, "cache_read", &read);
  define(m, "cache_page_bytes", &page_bytes);
  define(m, "cache_entry_bytes", &entry_bytes);
}

}  // namespace tamis::python
