#pragma once
// Libraries that are looked for when the program runs, not when it starts: a binary built with them
// also works where they are missing, and says which one is. Found where the system's loader looks
// (LD_LIBRARY_PATH, rpath, ld.so.cache) under the names given, nowhere else.
#include <initializer_list>
#include <string>
#include <string_view>

namespace choir {

/// Never closed: such libraries keep threads and atexit handlers.
class SharedLibrary {
 public:
  /// The first of `sonames` that can be loaded. `name` is what messages call it.
  SharedLibrary(std::string_view name, std::initializer_list<const char*> sonames);

  bool loaded() const { return handle_ != nullptr; }
  /// "libcudnn.so.9"; empty when not loaded.
  const std::string& soname() const { return soname_; }
  /// The loader's words for each name tried; empty when loaded.
  const std::string& reason() const { return reason_; }

  /// Fills one entry of a table of functions. A function that is not there makes the library
  /// useless: loaded() is false from then on, and the reason names the function.
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
