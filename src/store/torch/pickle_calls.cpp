#include "src/store/torch/pickle_calls.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "choir/core/error.hpp"

namespace choir {
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

}  // namespace choir
