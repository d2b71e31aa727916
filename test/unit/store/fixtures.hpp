#pragma once
// Logical tensors in which every byte is a function of (tensor, element), divided into pieces in
// several ways.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "src/store/store.hpp"

namespace choir::test {

/// A folder that is removed with all its contents.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string form = (std::filesystem::temp_directory_path() / "choir_").string();
    form += std::string(6, 'X');  // the mark that mkdtemp replaces
    if (mkdtemp(form.data()) == nullptr) throw Error(ExitCode::other, "mkdtemp " + form);
    path_ = form;
  }
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// splitmix64
inline std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// The first 8 bytes of an element of a tensor (NaNs and all other patterns included).
inline std::uint64_t element_bits(std::uint64_t seed, std::size_t tensor, std::int64_t element) {
  return mixed(seed * 1000003u + tensor * 7919u + static_cast<std::uint64_t>(element) * 31u);
}

/// The division of a tensor among ranks.
enum class Cut {
  slices,      ///< contiguous runs of uneven length, some empty
  rows,        ///< row r belongs to rank r mod n: many short pieces
  everything,  ///< the whole on every rank (load only)
  nothing,     ///< load only
};

/// Tensors of odd shapes and all dtypes, with their own memory.
class TensorSet {
 public:
  TensorSet(Cut cut, int rank, int ranks, std::uint64_t seed = 1) : seed_(seed) {
    add("parameters/embedding.weight", DType::f32, {65, 33}, cut, rank, ranks);
    add("parameters/blocks.0.attn.qkv.weight", DType::f64, {17, 3, 5}, cut, rank, ranks);
    add("parameters/blocks.0.mlp.bias", DType::bf16, {1023}, cut, rank, ranks);
    add("optimizer/m/embedding.weight", DType::f32, {65, 33}, cut, rank, ranks);
    add("optimizer/v/big", DType::f32, {700001}, cut, rank, ranks);
    add("state/counters", DType::i64, {3}, cut, rank, ranks);
    add("state/scale", DType::f16, {1}, cut, rank, ranks);
    add("state/none", DType::i32, {4, 0, 2}, cut, rank, ranks);
    add("state/scalar", DType::f64, {}, cut, rank, ranks);
    add("state/bytes", DType::u8, {13, 1}, cut, rank, ranks);
  }

  std::vector<StoredTensor>& tensors() { return tensors_; }

  void fill() {
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      each(t, [&](char* at, std::int64_t element, std::size_t width) {
        const std::uint64_t bits = element_bits(seed_, t, element);
        std::memcpy(at, &bits, width);
      });
  }
  void poison() {
    for (auto& block : memory_) std::memset(block.data(), 0xA5, block.size());
  }
  /// Number of elements that differ from those that fill() writes.
  std::int64_t wrong() {
    std::int64_t count = 0;
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      each(t, [&](char* at, std::int64_t element, std::size_t width) {
        const std::uint64_t bits = element_bits(seed_, t, element);
        count += std::memcmp(at, &bits, width) != 0;
      });
    return count;
  }

 private:
  template <class Action>
  void each(std::size_t tensor, Action&& action) {
    const std::size_t width = size_of(tensors_[tensor].dtype);
    for (const StoredPiece& piece : tensors_[tensor].pieces)
      for (std::int64_t i = 0; i < piece.count; ++i)
        action(static_cast<char*>(piece.data) + static_cast<std::size_t>(i) * width,
               piece.first + i, width);
  }

  void add(const std::string& name, DType dtype, const Shape& shape, Cut cut, int rank, int ranks) {
    StoredTensor tensor{name, dtype, shape, {}, nullptr};
    const std::int64_t count = shape.count();
    if (cut == Cut::everything) own(tensor, 0, count);
    if (cut ==
        Cut::slices) {  // rank r gets a share of r + 1; rank 0 passes its first element as a piece
      const std::int64_t parts = std::int64_t{ranks} * (ranks + 1) / 2;
      const std::int64_t before = count * (std::int64_t{rank} * (rank + 1) / 2) / parts;
      const std::int64_t after = count * (std::int64_t{rank + 1} * (rank + 2) / 2) / parts;
      const std::int64_t middle = before + (after - before) / 3;
      own(tensor, middle, after - middle);
      own(tensor, before, 0);
      own(tensor, before, middle - before);
    }
    if (cut == Cut::rows) {
      const std::int64_t length = std::max<std::int64_t>(1, shape.rank() > 1 ? shape.back() : 1237);
      for (std::int64_t row = rank; row * length < count; row += ranks)
        own(tensor, row * length, std::min(length, count - row * length));
    }
    tensors_.push_back(std::move(tensor));
  }

  void own(StoredTensor& tensor, std::int64_t first, std::int64_t count) {
    memory_.emplace_back(static_cast<std::size_t>(count) * size_of(tensor.dtype) + 1);
    tensor.pieces.push_back({first, count, memory_.back().data()});
  }

  std::uint64_t seed_;
  std::deque<std::vector<char>> memory_;
  std::vector<StoredTensor> tensors_;
};

inline CheckpointMeta meta_of(std::int64_t step, std::optional<double> metric = {}) {
  return {step, "{\"deck\": {\"run.seed\": 7}, \"text\": \"\xc3\xa9\"}", metric, "d3c0", "dp 2"};
}

inline void flip_bit(const std::string& path, std::int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const int byte = file.get();
  file.seekp(offset);
  file.put(static_cast<char>(byte ^ 0x10));
}

}  // namespace choir::test
