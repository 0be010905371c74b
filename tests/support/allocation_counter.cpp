#include "support/allocation_counter.hpp"

#include <cstdlib>
#include <new>

// Replaces operator new and delete of the whole test program by malloc and free with a count. Sanitizers still see
// every block, since they intercept malloc.

namespace {

thread_local std::int64_t thread_allocations = 0;

void* allocate(std::size_t bytes) {
  ++thread_allocations;
  return std::malloc(bytes > 0 ? bytes : 1);
}

void* allocate_aligned(std::size_t bytes, std::align_val_t alignment) {
  ++thread_allocations;
  const auto align = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(align, (bytes + align - 1) / align * align + (bytes == 0 ? align : 0));
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

namespace tamis::test {
std::int64_t allocations_of_this_thread() noexcept { return thread_allocations; }
}  // namespace tamis::test

void* operator new(std::size_t bytes) { return or_throw(allocate(bytes)); }
void* operator new[](std::size_t bytes) { return or_throw(allocate(bytes)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new(std::size_t bytes, std::align_val_t align) { return or_throw(allocate_aligned(bytes, align)); }
void* operator new[](std::size_t bytes, std::align_val_t align) { return or_throw(allocate_aligned(bytes, align)); }
void* operator new(std::size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return allocate_aligned(bytes, align);
}
void* operator new[](std::size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return allocate_aligned(bytes, align);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
