#pragma once
// GGUF, the format of llama.cpp: pairs of keys and values, then tensors. The file stores the
// fastest dimension first; shapes here are row-major, as everywhere else.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "src/store/tensor_file.hpp"

namespace choir {

/// The index of an alternative is its type in the file; arrays of arrays (9) are not supported.
using GgufArray =
    std::variant<std::vector<std::uint8_t>, std::vector<std::int8_t>, std::vector<std::uint16_t>,
                 std::vector<std::int16_t>, std::vector<std::uint32_t>, std::vector<std::int32_t>,
                 std::vector<float>, std::vector<bool>, std::vector<std::string>, std::monostate,
                 std::vector<std::uint64_t>, std::vector<std::int64_t>, std::vector<double>>;
using GgufValue = std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t,
                               std::uint32_t, std::int32_t, float, bool, std::string, GgufArray,
                               std::uint64_t, std::int64_t, double>;

/// The pairs of keys and values, in the order of the file.
class GgufMetadata {
 public:
  using Pair = std::pair<std::string, GgufValue>;

  /// The key must be new (CHOIR_CHECK).
  void add(std::string key, GgufValue value);
  const std::vector<Pair>& pairs() const { return pairs_; }
  /// nullptr when there is none.
  const GgufValue* find(std::string_view key) const;
  /// nullptr if the key is missing or its value has another type.
  template <class T>
  const T* get(std::string_view key) const {
    const GgufValue* value = find(key);
    return value == nullptr ? nullptr : std::get_if<T>(value);
  }
  template <class T>
  const std::vector<T>* get_array(std::string_view key) const {
    const auto* array = get<GgufArray>(key);
    return array == nullptr ? nullptr : std::get_if<std::vector<T>>(array);
  }

 private:
  std::vector<Pair> pairs_;
};

class GgufReader final : public TensorReader {
 public:
  /// Local. Reads versions 2 and 3, little-endian. The path of a model in several files is that of
  /// the first, NAME-00001-of-00003.gguf, which has the metadata; the others are beside it. Throws
  /// StorageError if a file is missing, if a header is inconsistent, or if a tensor has a type that
  /// is not supported: one of the quantised types of two bits and fewer, or of three bits with a
  /// table, for example.
  explicit GgufReader(const std::string& path);
  ~GgufReader() override;

  const GgufMetadata& metadata() const;

 private:
  void read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                    std::byte* to) const override;
  struct State;
  std::unique_ptr<State> state_;
};

class GgufWriter final : public TensorWriter {
 public:
  /// Local; touches no file. The last extent of quantised tensors must be whole blocks. Throws
  /// StorageError for tensors that llama.cpp would not read: names of 64 bytes and longer, or more
  /// than four dimensions.
  GgufWriter(const std::string& path, GgufMetadata metadata, std::vector<TensorEntry> tensors);
  ~GgufWriter() override;

  void lay_out() override;
  void sync() override;

 private:
  void write_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                     const std::byte* from) override;
  void rename_files() override;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
