#pragma once
// Libraries that are loaded while the program runs, not when it starts: a binary that was built
// with them also works where they are missing, and reports which one is. They are searched only
// where the system's loader looks (LD_LIBRARY_PATH, rpath, ld.so.cache) and only under the given
// names.
#include <initializer_list>
#include <string>
#include <string_view>

namespace choir {

/// A handle that is never closed, because such libraries keep threads and atexit handlers.
class SharedLibrary {
 public:
  /// The first of `sonames` that can be loaded. `name` is what messages call it.
  SharedLibrary(std::string_view name, std::initializer_list<const char*> sonames);

  bool loaded() const { return handle_ != nullptr; }
  /// "libcudnn.so.9"; empty when not loaded.
  const std::string& soname() const { return soname_; }
  /// The loader's messages for all names that were tried; empty when loaded.
  const std::string& reason() const { return reason_; }

  /// Fills one entry of a table of functions. A missing function makes the library unusable:
  /// loaded() becomes false, and the reason names the function.
  template <class F>
  void find(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(address_of(symbol));
  }

 private:
  void* address_of(const char* symbol);

  std::string name_, soname_, reason_;
  void* handle_ = nullptr;
};

}  // namespace choir
