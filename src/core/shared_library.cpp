#include "choir/core/shared_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace choir {

SharedLibrary::SharedLibrary(std::string_view name, std::initializer_list<const char*> sonames)
    : name_(name) {
  std::string tried;
  for (const char* soname : sonames) {
    handle_ = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      soname_ = soname;
      return;
    }
    const char* words = dlerror();
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", words != nullptr ? words : soname);
  }
  reason_ = fmt::format("{} cannot be loaded: {}", name_, tried);
}

void* SharedLibrary::address_of(const char* symbol) {
  if (handle_ == nullptr) return nullptr;
  void* address = dlsym(handle_, symbol);
  if (address == nullptr) {
    reason_ = fmt::format("{}: {} has no function '{}': another version is needed", name_, soname_,
                          symbol);
    soname_.clear();
    handle_ = nullptr;
  }
  return address;
}

}  // namespace choir
