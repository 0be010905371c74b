#include "tamis/cache.hpp"

#include "c_api/args.hpp"
#include "c_api/guard.hpp"

using namespace tamis::c_api;  // NOLINT(google-build-using-namespace): the entries below are the whole file
using tamis::CacheLayout;

extern "C" {

const char* tamis_dtype_name(tamis_dtype dtype) noexcept {
  if (dtype < 0 || dtype > TAMIS_DTYPE_INT64) return "unknown dtype";
  return tamis::dtype_name(static_cast<tamis::DType>(dtype));
}

const char* tamis_cache_layout_name(tamis_cache_layout layout) noexcept {
  if (layout < 0 || layout > TAMIS_CACHE_INDEXER_MXFP4) return "unknown layout";
  return tamis::cache_layout_name(static_cast<CacheLayout>(layout));
}

tamis_status tamis_cache_entry_bytes(tamis_cache_layout layout, int64_t head_dim, int64_t* bytes) noexcept {
  return guarded([&] {
    require({"cache_entry_bytes", "bytes"}, bytes);
    *bytes = tamis::cache_entry_bytes(enumerator({"cache_entry_bytes", "layout"}, layout, CacheLayout::kIndexerMxfp4),
                                      head_dim);
  });
}

tamis_status tamis_cache_page_bytes(tamis_cache_layout layout, int64_t head_dim, int64_t page_size,
                                    int64_t* bytes) noexcept {
  return guarded([&] {
    require({"cache_page_bytes", "bytes"}, bytes);
    *bytes = tamis::cache_page_bytes(enumerator({"cache_page_bytes", "layout"}, layout, CacheLayout::kIndexerMxfp4),
                                     head_dim, page_size);
  });
}

tamis_status tamis_cache_write(const tamis_cache_write_args* args) noexcept {
  return guarded([&] {
    using C = tamis_cache_write_args;
    const ArgsReader read("cache_write", args);
    tamis::cache_write(read(&C::rows, "rows"), read(&C::slots, "slots"), read(&C::cache, "cache"));
  });
}

tamis_status tamis_cache_read(const tamis_cache_read_args* args) noexcept {
  return guarded([&] {
    using C = tamis_cache_read_args;
    const ArgsReader read("cache_read", args);
    tamis::cache_read(read(&C::cache, "cache"), read(&C::slots, "slots"), read(&C::rows, "rows"));
  });
}

}  // extern "C"
