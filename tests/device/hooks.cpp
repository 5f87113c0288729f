// Lets ATen's CUDA hooks answer that no device has a context. Otherwise the autograd engine asks the driver, which is
// absent, for the streams of the devices of gradients. Compiled by driver_hooks.py.
#include <ATen/detail/CUDAHooksInterface.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr size_t kHeader = 2;    // words in front of a table of virtual functions: offset and type information
constexpr size_t kEntries = 64;  // at least as many as the class has virtual functions (48 in torch 2.15)

bool no_context(const void*, c10::DeviceIndex) { return false; }

}  // namespace

// Gives the hooks a copy of their table of virtual functions, with another function for hasPrimaryContext. By the
// Itanium C++ ABI (Linux, macOS) a pointer to a virtual function begins with its offset in that table; x86 adds 1.
extern "C" void answer_that_no_device_has_a_context() {
  auto& hooks = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  auto function =
      static_cast<bool (at::CUDAHooksInterface::*)(c10::DeviceIndex) const>(&at::CUDAHooksInterface::hasPrimaryContext);
  uintptr_t offset;
  std::memcpy(&offset, &function, sizeof offset);
  void*** table_of_object = reinterpret_cast<void***>(&hooks);
  void** copy = new void*[kHeader + kEntries];
  std::memcpy(copy, *table_of_object - kHeader, (kHeader + kEntries) * sizeof(void*));
  copy[kHeader + offset / sizeof(void*)] = reinterpret_cast<void*>(&no_context);
  *table_of_object = copy + kHeader;
}
