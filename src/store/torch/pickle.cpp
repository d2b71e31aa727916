// The globals that a pickle may name, with the results of calling them (the only "functions" of a
// pickle, which are data), and the machine that reads pickles without running code.

#include "src/store/torch/torch_checkpoint.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "choir/core/error.hpp"
#include "src/store/weight_file.hpp"

namespace choir {

/// True for the known globals, such as "collections OrderedDict".
bool pickle_may_name(std::string_view global);

/// The result of calling `global` with these arguments. Throws a StorageError that begins with
/// `what`.
PickleValue pickle_call(const std::string& global, const std::vector<const PickleValue*>& arguments,
                        const std::string& what);

/// The storage that a persistent id names.
PickleValue pickle_storage(const PickleValue& id, const std::string& what);

namespace {

using Arguments = std::vector<const PickleValue*>;

// Values may be recalled repeatedly, so copied parts of them must be small.
constexpr std::size_t kMostDims = 64, kLongestKey = 255;

struct TypeName {
  std::string_view name;
  Encoding encoding;
};
constexpr std::array<TypeName, 10> kStorages{{{"torch FloatStorage", Encoding::f32},
                                              {"torch HalfStorage", Encoding::f16},
                                              {"torch BFloat16Storage", Encoding::bf16},
                                              {"torch DoubleStorage", Encoding::f64},
                                              {"torch LongStorage", Encoding::i64},
                                              {"torch IntStorage", Encoding::i32},
                                              {"torch ShortStorage", Encoding::i16},
                                              {"torch CharStorage", Encoding::i8},
                                              {"torch ByteStorage", Encoding::u8},
                                              {"torch BoolStorage", Encoding::boolean}}};
constexpr std::array<TypeName, 17> kDtypes{{{"torch float32", Encoding::f32},
                                            {"torch float16", Encoding::f16},
                                            {"torch bfloat16", Encoding::bf16},
                                            {"torch float64", Encoding::f64},
                                            {"torch int64", Encoding::i64},
                                            {"torch int32", Encoding::i32},
                                            {"torch int16", Encoding::i16},
                                            {"torch int8", Encoding::i8},
                                            {"torch uint8", Encoding::u8},
                                            {"torch uint16", Encoding::u16},
                                            {"torch uint32", Encoding::u32},
                                            {"torch uint64", Encoding::u64},
                                            {"torch bool", Encoding::boolean},
                                            {"torch float8_e4m3fn", Encoding::f8_e4m3},
                                            {"torch float8_e5m2", Encoding::f8_e5m2},
                                            {"torch float8_e4m3fnuz", Encoding::f8_e4m3fnuz},
                                            {"torch float8_e5m2fnuz", Encoding::f8_e5m2fnuz}}};
constexpr std::string_view kDict = "collections OrderedDict", kSize = "torch Size",
                           kUntyped = "torch.storage UntypedStorage",
                           kTensor2 = "torch._utils _rebuild_tensor_v2",
                           kTensor3 = "torch._utils _rebuild_tensor_v3",
                           kParameter = "torch._utils _rebuild_parameter";

template <std::size_t kCount>
std::optional<Encoding> encoding_named(const std::array<TypeName, kCount>& types,
                                       std::string_view name) {
  for (const TypeName& type : types)
    if (type.name == name) return type.encoding;
  return {};
}

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw StorageError(what + " " + why,
                     "save the state_dict again with torch.save, or as safetensors");
}

template <class T>
const T& argument(const Arguments& arguments, std::size_t i, const char* role,
                  const std::string& what) {
  const T* value = i < arguments.size() ? arguments[i]->as<T>() : nullptr;
  if (value == nullptr) refuse(what, fmt::format("rebuilds a tensor without its {}", role));
  return *value;
}

std::vector<std::int64_t> sizes(const Arguments& arguments, std::size_t i, const char* role,
                                const std::string& what) {
  std::vector<std::int64_t> sizes;
  const PickleList& list = argument<PickleList>(arguments, i, role, what);
  if (list.items.size() > kMostDims)
    refuse(what, fmt::format("has a tensor with {} dimensions", list.items.size()));
  for (const PickleValue* item : list.items) {
    const auto* size = item->as<std::int64_t>();
    if (size == nullptr) refuse(what, fmt::format("has a tensor whose {} is not a number", role));
    sizes.push_back(*size);
  }
  return sizes;
}

// Otherwise bits such as "conjugated" or "negated" would be lost.
void require_no_metadata(const Arguments& arguments, std::size_t i, const std::string& what) {
  if (i >= arguments.size() || arguments[i]->as<std::monostate>() != nullptr) return;
  const auto* dict = arguments[i]->as<PickleDict>();
  if (dict == nullptr || !dict->entries.empty())
    refuse(what, "has a tensor with metadata, which is not supported");
}

// (storage, offset, shape, stride, requires_grad, hooks[, dtype][, metadata])
PickleTensor rebuilt_tensor(const Arguments& arguments, bool with_dtype, const std::string& what) {
  PickleTensor tensor;
  tensor.storage = argument<PickleStorage>(arguments, 0, "storage", what);
  tensor.offset = argument<std::int64_t>(arguments, 1, "offset", what);
  tensor.shape = sizes(arguments, 2, "shape", what);
  tensor.stride = sizes(arguments, 3, "stride", what);
  if (with_dtype) {
    const std::string& name = argument<PickleGlobal>(arguments, 6, "dtype", what).name;
    const auto encoding = encoding_named(kDtypes, name);
    if (!encoding) refuse(what, "has a tensor of the unknown dtype " + name);
    tensor.encoding = *encoding;
  } else {
    if (!tensor.storage.encoding) refuse(what, "has a tensor on a storage without a type");
    tensor.encoding = *tensor.storage.encoding;
  }
  require_no_metadata(arguments, with_dtype ? 7 : 6, what);
  return tensor;
}

}  // namespace

bool pickle_may_name(std::string_view global) {
  constexpr std::array kFunctions{kDict, kSize, kUntyped, kTensor2, kTensor3, kParameter};
  return std::find(kFunctions.begin(), kFunctions.end(), global) != kFunctions.end() ||
         encoding_named(kStorages, global) || encoding_named(kDtypes, global);
}

PickleValue pickle_call(const std::string& global, const Arguments& arguments,
                        const std::string& what) {
  if (global == kDict) {
    if (!arguments.empty()) refuse(what, "makes an OrderedDict of arguments");
    return {PickleDict{}};
  }
  if (global == kSize) {
    PickleList size;
    size.tuple = true;
    if (!arguments.empty()) size.items = argument<PickleList>(arguments, 0, "size", what).items;
    if (size.items.size() > kMostDims) refuse(what, "has a size of too many dimensions");
    return {std::move(size)};
  }
  if (global == kTensor2) return {rebuilt_tensor(arguments, false, what)};
  if (global == kTensor3) return {rebuilt_tensor(arguments, true, what)};
  if (global == kParameter) return {argument<PickleTensor>(arguments, 0, "tensor", what)};
  refuse(what, "calls " + global + ", which is not a function");
}

PickleValue pickle_storage(const PickleValue& id, const std::string& what) {
  const auto* list = id.as<PickleList>();
  if (list == nullptr || list->items.size() != 5)
    refuse(what, "has a persistent id that is not one of torch's");
  const auto* kind = list->items[0]->as<std::string>();
  const auto* type = list->items[1]->as<PickleGlobal>();
  const auto* key = list->items[2]->as<std::string>();
  const auto* elements = list->items[4]->as<std::int64_t>();
  if (kind == nullptr || *kind != "storage" || type == nullptr || key == nullptr ||
      elements == nullptr || *elements < 0 || key->size() > kLongestKey)
    refuse(what, "has a persistent id that is not one of torch's");
  const auto encoding = encoding_named(kStorages, type->name);
  if (!encoding && type->name != kUntyped)
    refuse(what, "has a storage of the unknown type " + type->name);
  return {PickleStorage{*key, encoding, *elements}};
}

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
