#pragma once
// Helpers shared by the tests of weight files: a folder for each test, bytes of files, and the
// message of a refusal.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"
#include "src/store/tensor_file.hpp"

namespace choir::test {

class WeightsFolder {
 public:
  WeightsFolder() : path_(testing::TempDir() + "choir_weights_" + std::to_string(::getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~WeightsFolder() { std::filesystem::remove_all(path_); }
  WeightsFolder(const WeightsFolder&) = delete;
  WeightsFolder& operator=(const WeightsFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  /// Writes the file and returns its path.
  std::string put(const std::string& name, std::string_view bytes) const {
    std::ofstream(file(name), std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return file(name);
  }
  std::string bytes(const std::string& name) const {
    std::ifstream in(file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// Sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string path_;
};

/// "00ff 10" -> three bytes.
inline std::string from_hex(std::string_view hex) {
  std::string digits, bytes;
  for (const char c : hex)
    if (std::isxdigit(static_cast<unsigned char>(c)) != 0) digits += c;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// The message of the StorageError, or "" if there was none.
template <class Action>
std::string refusal(Action&& action) {
  try {
    action();
  } catch (const StorageError& error) {
    return error.what();
  }
  return "";
}

template <class T = float>
std::vector<T> values(const TensorReader& reader, const std::string& name) {
  std::vector<T> all(static_cast<std::size_t>(reader.at(name).shape.count()));
  reader.read(name, 0, static_cast<std::int64_t>(all.size()), all.data(), DTypeOf<T>::value);
  return all;
}

}  // namespace choir::test

#define EXPECT_SAYS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "it says: " << (text)
