#pragma once
// Python's pickles as data: what torch.save and pickle.dump make of dicts, lists, numbers, texts
// and tensors. Nothing is executed: a pickle may name the few functions that rebuild tensors, which
// are known here, and any other function or opcode is refused by its name.
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "choir/store/encoding.hpp"

namespace choir {

struct PickleValue;

struct PickleList {
  std::vector<const PickleValue*> items;
  bool tuple = false;
};
struct PickleDict {
  std::vector<std::pair<const PickleValue*, const PickleValue*>> entries;

  /// nullptr when no text key is this; the last of several, as in Python.
  const PickleValue* find(std::string_view key) const;
};
/// A class or function that a pickle names: "torch FloatStorage".
struct PickleGlobal {
  std::string name;
};
/// The bytes that tensors are views of: a file of its own in the archive.
struct PickleStorage {
  std::string key;
  std::optional<Encoding> encoding;  ///< nothing: bytes
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

  /// nullptr when it is something else.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&held);
  }
};

/// Values refer to each other, possibly in circles, and live as long as this.
class Pickle {
 public:
  /// StorageError that begins with `what`. At most 64 MiB.
  Pickle(std::string_view bytes, const std::string& what);
  Pickle(Pickle&&) = default;

  const PickleValue& root() const { return *root_; }

 private:
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

/// A file that is nothing but a pickle: nanoGPT's meta.pkl.
Pickle read_pickle_file(const std::string& path);

}  // namespace choir
