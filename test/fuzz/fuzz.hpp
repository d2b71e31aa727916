#pragma once
// Helpers shared by all targets of libFuzzer. A target defines seeds() and try_input(); its program
// writes the seeds into $CHOIR_FUZZ_SEEDS and ends if that is set, and fuzzes otherwise. Refusing
// an input with one of our errors and the exit code of decks, data or storage is correct; any other
// exception, and any file outside of the scratch folder, is a finding.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"

namespace choir::fuzz {

std::vector<std::string> seeds();
void try_input(std::string_view input);

/// Reports a violated invariant; libFuzzer keeps the input.
inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

/// One folder for the whole run, removed at its end.
inline const std::string& scratch() {
  static const struct Folder {
    Folder() : path((std::filesystem::temp_directory_path() / "choir_fuzz_").string()) {
      path += std::string(6, 'X');  // the mark that mkdtemp replaces
      require(mkdtemp(path.data()) != nullptr, "no scratch folder");
    }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    std::string path;
  } folder;
  return folder.path;
}

/// Writes a file into the scratch folder; returns its path.
inline std::string put(const std::string& name, std::string_view bytes) {
  const std::string path = scratch() + "/" + name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Removes the text before the first `mark`, and the mark, from `rest`; returns that text.
inline std::string_view cut(std::string_view& rest, std::string_view mark) {
  const std::size_t at = rest.find(mark);
  const std::string_view front = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + mark.size());
  return front;
}

/// Runs `action`; returns true if it was not refused.
template <class Action>
bool accepted(Action&& action) {
  try {
    action();
    return true;
  } catch (const Error& error) {
    const bool known = error.code() == ExitCode::deck || error.code() == ExitCode::data ||
                       error.code() == ExitCode::storage;
    if (!known) std::fprintf(stderr, "%s\n", describe(error).c_str());
    require(known, "an error that is not the input's");
    require(error.what()[0] != '\0', "an error without words");
    return false;
  }
}

}  // namespace choir::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* folder = std::getenv("CHOIR_FUZZ_SEEDS");
  if (folder == nullptr) return 0;
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const std::string& seed : choir::fuzz::seeds())
    std::ofstream(folder + std::string("/") + std::to_string(number++), std::ios::binary) << seed;
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  choir::fuzz::try_input({reinterpret_cast<const char*>(data), size});
  return 0;
}
