#include "choir/store/torch/pickle.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "choir/core/error.hpp"
#include "src/store/file_window.hpp"
#include "src/store/torch/pickle_calls.hpp"

namespace choir {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;
constexpr std::size_t kMostValues = std::size_t{1} << 22;
// A value needs many times the memory of the byte that pushes it. Pickles of torch.save have fewer
// values than a quarter of their bytes, and a stack of a few thousand.
constexpr std::size_t kAlwaysValues = std::size_t{1} << 16, kBytesPerValue = 4;
constexpr std::size_t kDeepestStack = std::size_t{1} << 20;
constexpr int kNewestProtocol = 5;

// The supported opcodes, named as in Python's pickletools.
enum Opcode : unsigned char {
  kProto = 0x80,
  kFrame = 0x95,
  kStop = '.',
  kMark = '(',
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kBinFloat = 'G',
  kBinUnicode = 'X',
  kShortBinUnicode = 0x8c,
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kBinGet = 'h',
  kLongBinGet = 'j',
  kGlobal = 'c',
  kStackGlobal = 0x93,
  kReduce = 'R',
  kBuild = 'b',
  kBinPersId = 'Q'
};

// Names of unsupported opcodes for messages: they would run code, or no supported value needs them.
std::string name_of_opcode(unsigned char opcode) {
  switch (opcode) {
    case 'i':
      return "INST";
    case 'o':
      return "OBJ";
    case 0x81:
      return "NEWOBJ";
    case 0x92:
      return "NEWOBJ_EX";
    case 0x82:
    case 0x83:
    case 0x84:
      return "EXT";
    case 'P':
      return "PERSID";
    case 'B':
    case 'C':
    case 0x8e:
      return "BINBYTES";
    case 0x8f:
      return "EMPTY_SET";
    default:
      return fmt::format("0x{:02x}", opcode);
  }
}

/// Python's pickle machine (a stack and a memo) without the opcodes that run code.
class Machine {
 public:
  Machine(std::string_view bytes, const std::string& what, std::deque<PickleValue>& values)
      : bytes_(bytes),
        what_(what),
        values_(values),
        most_values_(std::min(kMostValues, kAlwaysValues + bytes.size() / kBytesPerValue)) {}

  const PickleValue* run() {
    for (;;) {
      const auto opcode = number<unsigned char>();
      if (opcode == kStop) break;
      step(opcode);
    }
    if (stack_.size() != 1 || !marks_.empty()) refuse("does not end with one value");
    return stack_.front();
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { throw StorageError(what_ + " " + why); }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) refuse(fmt::format("ends at byte {}", bytes_.size()));
    const std::string_view taken = bytes_.substr(at_, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
    return taken;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) refuse("has a name without an end");
    const std::string text(take(end - at_));
    at_ = end + 1;
    return text;
  }

  template <class T>
  void push(T value) {
    if (values_.size() >= most_values_)
      refuse(fmt::format("has {} bytes and more than {} values", bytes_.size(), most_values_));
    push_known(&values_.emplace_back(PickleValue{std::move(value)}));
  }
  void push_known(PickleValue* value) {
    if (stack_.size() >= kDeepestStack)
      refuse(fmt::format("stacks more than {} values", kDeepestStack));
    stack_.push_back(value);
  }
  // Values below the last mark stay on the stack: they belong to the list or dict that is being
  // built.
  PickleValue* top() const {
    if (stack_.size() <= floor()) refuse("takes a missing value");
    return stack_.back();
  }
  PickleValue* pop() {
    PickleValue* value = top();
    stack_.pop_back();
    return value;
  }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::vector<const PickleValue*> pop_to_mark() {
    if (marks_.empty()) refuse("takes values up to a missing mark");
    std::vector<const PickleValue*> items(
        stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  void put(std::uint32_t key) {
    memo_[key] = top();
    if (memo_.size() > most_values_) refuse(fmt::format("keeps more than {} values", most_values_));
  }
  void get(std::uint32_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) refuse(fmt::format("recalls value {}, which it never kept", key));
    push_known(found->second);
  }

  void push_long(std::size_t count) {
    if (count > 8) refuse(fmt::format("has a whole number of {} bytes", count));
    std::uint64_t bits = 0;
    const std::string_view bytes = take(count);
    for (std::size_t i = 0; i < count; ++i)
      bits |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    const auto unused = static_cast<int>(64 - 8 * count);
    push(count == 0 ? std::int64_t{0} : static_cast<std::int64_t>(bits << unused) >> unused);
  }
  // The only big-endian number of the format.
  void push_float() {
    std::uint64_t bits = 0;
    for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
    push(std::bit_cast<double>(bits));
  }
  void push_tuple(std::vector<const PickleValue*> items) {
    push(PickleList{std::move(items), true});
  }
  void push_short_tuple(std::size_t count) {
    std::vector<const PickleValue*> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    push_tuple(std::move(items));
  }
  void push_global(const std::string& module, const std::string& name) {
    const std::string global = module + " " + name;
    if (!pickle_may_name(global))
      throw StorageError(fmt::format("{} names '{}.{}', which could run code", what_, module, name),
                         "only dicts, lists, numbers, texts and plain tensors are supported");
    push(PickleGlobal{global});
  }
  void push_stack_global() {
    const auto* name = pop()->as<std::string>();
    const auto* module = pop()->as<std::string>();
    if (name == nullptr || module == nullptr)
      refuse("names a global by a value that is not a text");
    push_global(*module, *name);
  }

  void append(const std::vector<const PickleValue*>& items) {
    auto* list = std::get_if<PickleList>(&top()->held);
    if (list == nullptr || list->tuple) refuse("appends to a value that is not a list");
    list->items.insert(list->items.end(), items.begin(), items.end());
  }
  void set_items(const std::vector<const PickleValue*>& items) {
    auto* dict = std::get_if<PickleDict>(&top()->held);
    if (dict == nullptr || items.size() % 2 != 0)
      refuse("sets items of a value that is not a dict");
    for (std::size_t i = 0; i < items.size(); i += 2)
      dict->entries.emplace_back(items[i], items[i + 1]);
  }
  void reduce() {
    const PickleValue *arguments = pop(), *callee = pop();
    const auto* global = callee->as<PickleGlobal>();
    const auto* list = arguments->as<PickleList>();
    if (global == nullptr || list == nullptr) refuse("calls a value that is not a function");
    push(pickle_call(global->name, list->items, what_).held);
  }
  // A state_dict stores the versions of its modules as an attribute, which has no effect on
  // tensors.
  void build() {
    const auto* state = pop()->as<PickleDict>();
    const bool harmless = state != nullptr && top()->as<PickleDict>() != nullptr &&
                          state->entries.size() == 1 && state->find("_metadata") != nullptr;
    if (!harmless) refuse("sets attributes other than _metadata of a dict (BUILD)");
  }

  void step(unsigned char opcode) {
    switch (opcode) {
      case kProto:
        if (const int protocol = number<unsigned char>(); protocol > kNewestProtocol)
          refuse(fmt::format("has protocol {}", protocol));
        return;
      case kFrame:
        number<std::uint64_t>();
        return;
      case kMark:
        if (marks_.size() >= kDeepestStack) refuse("has too many marks");
        marks_.push_back(stack_.size());
        return;
      case kNone:
        return push(std::monostate());
      case kNewTrue:
        return push(true);
      case kNewFalse:
        return push(false);
      case kBinInt:
        return push(std::int64_t{number<std::int32_t>()});
      case kBinInt1:
        return push(std::int64_t{number<std::uint8_t>()});
      case kBinInt2:
        return push(std::int64_t{number<std::uint16_t>()});
      case kLong1:
        return push_long(number<std::uint8_t>());
      case kBinFloat:
        return push_float();
      case kBinUnicode:
        return push(std::string(take(number<std::uint32_t>())));
      case kShortBinUnicode:
        return push(std::string(take(number<std::uint8_t>())));
      case kEmptyTuple:
        return push_tuple({});
      case kTuple:
        return push_tuple(pop_to_mark());
      case kTuple1:
        return push_short_tuple(1);
      case kTuple2:
        return push_short_tuple(2);
      case kTuple3:
        return push_short_tuple(3);
      case kEmptyList:
        return push(PickleList{});
      case kAppend:
        return append({pop()});
      case kAppends:
        return append(pop_to_mark());
      case kEmptyDict:
        return push(PickleDict{});
      case kSetItem: {
        const PickleValue *value = pop(), *key = pop();
        return set_items({key, value});
      }
      case kSetItems:
        return set_items(pop_to_mark());
      case kBinPut:
        return put(number<std::uint8_t>());
      case kLongBinPut:
        return put(number<std::uint32_t>());
      case kMemoize:
        return put(static_cast<std::uint32_t>(memo_.size()));
      case kBinGet:
        return get(number<std::uint8_t>());
      case kLongBinGet:
        return get(number<std::uint32_t>());
      case kGlobal: {
        const std::string module = line();
        return push_global(module, line());
      }
      case kStackGlobal:
        return push_stack_global();
      case kReduce:
        return reduce();
      case kBuild:
        return build();
      case kBinPersId:
        return push(pickle_storage(*pop(), what_).held);
      default:
        throw StorageError(fmt::format("{} has the opcode {} at byte {}, which is not supported",
                                       what_, name_of_opcode(opcode), at_ - 1),
                           "only dicts, lists, numbers, texts and plain tensors are supported");
    }
  }

  std::string_view bytes_;
  const std::string& what_;
  std::deque<PickleValue>& values_;
  std::size_t most_values_, at_ = 0;
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, PickleValue*> memo_;
};

}  // namespace

const PickleValue* PickleDict::find(std::string_view key) const {
  const auto found = std::find_if(entries.rbegin(), entries.rend(), [&](const auto& entry) {
    const auto* text = entry.first->template as<std::string>();
    return text != nullptr && *text == key;
  });
  return found == entries.rend() ? nullptr : found->second;
}

Pickle::Pickle(std::string_view bytes, const std::string& what) {
  if (bytes.size() > kMostBytes)
    throw StorageError(
        fmt::format("{} has {} bytes, more than {}", what, bytes.size(), kMostBytes));
  root_ = Machine(bytes, what, values_).run();
}

Pickle read_pickle_file(const std::string& path) {
  const FileWindow file(path);
  if (file.bytes() > static_cast<std::int64_t>(kMostBytes))
    throw StorageError(
        fmt::format("'{}' has {} bytes, more than {}", path, file.bytes(), kMostBytes));
  return {file.text_at(0, file.bytes()), "the pickle '" + path + "'"};
}

}  // namespace choir
