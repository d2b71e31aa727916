#pragma once
// Serialisation of values to bytes, for messages between ranks and for files that only their writer
// reads.

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "choir/core/error.hpp"

namespace choir {

class BytePacker {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const std::string& text) {
    put(text.size());
    bytes_ += text;
  }
  template <class T>
  void put(const std::vector<T>& values) {
    put(values.size());
    for (const T& value : values) put(value);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class ByteUnpacker {
 public:
  explicit ByteUnpacker(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  void get(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    require(sizeof value);
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
  }
  void get(std::string& text) {
    const std::size_t length = count();
    require(length);
    text.assign(bytes_.substr(0, length));
    bytes_.remove_prefix(length);
  }
  std::size_t count() {
    std::size_t n = 0;
    get(n);
    require(n);  // each element has at least one byte
    return n;
  }
  bool done() const { return bytes_.empty(); }

 private:
  void require(std::size_t n) const {
    CHOIR_CHECK(n <= bytes_.size(), "packed bytes end {} too early", n - bytes_.size());
  }
  std::string_view bytes_;
};

}  // namespace choir
