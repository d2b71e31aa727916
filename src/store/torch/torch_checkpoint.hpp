#pragma once
// Files of torch.save: a zip archive of a pickle, which describes tensors as views of storages, and
// of the storages. Python's pickles are read as data (dicts, lists, numbers, texts and tensors from
// torch.save and pickle.dump). Nothing is executed: a pickle may name only the few functions that
// rebuild tensors, which are implemented here, and any other function or opcode is refused by its
// name.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "src/store/encoding.hpp"
#include "src/store/tensor_file.hpp"

namespace choir {

struct PickleValue;

struct PickleList {
  std::vector<const PickleValue*> items;
  bool tuple = false;
};
struct PickleDict {
  std::vector<std::pair<const PickleValue*, const PickleValue*>> entries;

  /// nullptr if no text key equals `key`; the last of several, as in Python.
  const PickleValue* find(std::string_view key) const;
};
/// A class or function that a pickle names: "torch FloatStorage".
struct PickleGlobal {
  std::string name;
};
/// The bytes behind tensor views: a separate file in the archive.
struct PickleStorage {
  std::string key;
  std::optional<Encoding> encoding;  ///< std::nullopt: untyped bytes
  std::int64_t elements = 0;
};
struct PickleTensor {
  PickleStorage storage;
  Encoding encoding = Encoding::f32;
  std::int64_t offset = 0;  ///< elements
  std::vector<std::int64_t> shape, stride;
};

struct PickleValue {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, PickleList, PickleDict,
               PickleGlobal, PickleStorage, PickleTensor>
      held;

  /// nullptr if the value has another type.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&held);
  }
};

/// Owns the values of a pickle. They refer to each other, possibly in cycles.
class Pickle {
 public:
  /// Parses at most 64 MiB. Throws a StorageError that begins with `what`.
  Pickle(std::string_view bytes, const std::string& what);
  Pickle(Pickle&&) = default;

  const PickleValue& root() const { return *root_; }

 private:
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

/// Reads a file that consists of one pickle, such as nanoGPT's meta.pkl.
Pickle read_pickle_file(const std::string& path);

class FileWindow;

class TorchCheckpoint final : public TensorReader {
 public:
  /// Local. The name of a tensor consists of the keys and indices that lead to it, joined by '/':
  /// "model/transformer.wte.weight" in nanoGPT's ckpt.pt, and the plain name in a state_dict.
  /// Throws StorageError for inconsistent archives and pickles, pickles that name code, tensors
  /// beyond their storages, formats before version 1.6 of torch, TorchScript, and big-endian files.
  explicit TorchCheckpoint(const std::string& path);
  explicit TorchCheckpoint(const FileWindow& archive);
  ~TorchCheckpoint() override;

  /// The whole saved value including everything that is not a tensor, such as nanoGPT's model_args.
  const PickleValue& root() const;

 private:
  void read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                    std::byte* to) const override;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
