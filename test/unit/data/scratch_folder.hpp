#pragma once
// A folder for one test with its files; it is removed at the end.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "choir/core/error.hpp"
#include "src/data/text/token_file.hpp"

namespace choir::test {

class ScratchFolder {
 public:
  explicit ScratchFolder(std::int64_t id = ::getpid(), bool owner = true)
      : path_(testing::TempDir() + "choir_data_" + std::to_string(id)), owner_(owner) {
    if (owner_) std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    if (owner_) std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool owner_;
};

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class T>
std::string packed(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

inline void write_native(const std::string& path, std::span<const std::int32_t> tokens,
                         std::int64_t vocab_size, std::uint64_t hash = 7) {
  TokenFileWriter writer(path, vocab_size, hash);
  writer.append(tokens);
  writer.finish();
}

/// The message of the DataError that `action` throws; "" if it throws none.
template <class Action>
std::string data_error_of(Action&& action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

}  // namespace choir::test

/// Checks that the message of the DataError of `statement` contains `words`.
#define EXPECT_DATA_ERROR(statement, words)                                                    \
  do {                                                                                         \
    const std::string said = ::choir::test::data_error_of([&] { statement; });                 \
    EXPECT_NE(said.find(words), std::string::npos) << #statement << " said: '" << said << "'"; \
  } while (false)
