// cuDNN's backend interface: the library, opened at run time, and graphs of operations with the
// engine that is proposed for them.
#include "choir_cuda_features.hpp"

#if defined(CHOIR_HAVE_CUDNN)

#include "kernels/attention/cudnn/cudnn_backend.hpp"

#include <cstring>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/process.hpp"

namespace choir::cudnn {
namespace {

// Version 9.8 accepts a device description, and has the attention patterns for every shape we use.
constexpr std::size_t kOldest = 90800;

struct Loaded {
  Loaded() : library("cuDNN", {"libcudnn.so.9"}) {
    library.find(api.get_version, "cudnnGetVersion");
    library.find(api.get_error_string, "cudnnGetErrorString");
    library.find(api.get_last_error_string, "cudnnGetLastErrorString");
    library.find(api.create, "cudnnCreate");
    library.find(api.destroy, "cudnnDestroy");
    library.find(api.set_stream, "cudnnSetStream");
    library.find(api.create_descriptor, "cudnnBackendCreateDescriptor");
    library.find(api.destroy_descriptor, "cudnnBackendDestroyDescriptor");
    library.find(api.set_attribute, "cudnnBackendSetAttribute");
    library.find(api.get_attribute, "cudnnBackendGetAttribute");
    library.find(api.finalize, "cudnnBackendFinalize");
    library.find(api.execute, "cudnnBackendExecute");
    reason = library.reason();
    if (library.loaded() && api.get_version() < kOldest)
      reason = fmt::format("cuDNN {} is too old, 9.8 is needed", version());
  }
  std::string version() const {
    const std::size_t v = api.get_version();
    return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
  }

  SharedLibrary library;
  Api api;
  std::string reason;
};

const Loaded& loaded() {
  static const Loaded once;
  return once;
}

}  // namespace

const Api& api() {
  if (!absent_because().empty())
    throw DeckError(absent_because(),
                    "load the cuDNN 9 module, or put its folder into LD_LIBRARY_PATH");
  return loaded().api;
}

const std::string& absent_because() {
  return loaded().reason;
}

std::string version_text() {
  if (!absent_because().empty()) return {};
  return fmt::format("cuDNN {} ({})", loaded().version(), loaded().library.soname());
}

namespace {

/// ": " and cuDNN's own explanation of the last failure of this thread, as one line; empty if there
/// is none.
std::string last_words() {
  std::array<char, 4096> text{};
  api().get_last_error_string(text.data(), text.size());
  std::string words(text.data());
  for (char& c : words)
    if (c == '\n') c = ' ';
  while (!words.empty() && words.back() == ' ') words.pop_back();
  return words.empty() ? words : ": " + words;
}

/// The engines that the heuristics propose for a graph, best first.
class Proposals {
 public:
  Proposals(const Descriptor& graph, const Target& target)
      : heuristics_(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    heuristics_.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    heuristics_.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!target.handle) heuristics_.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.properties);
    heuristics_.finalize("engine heuristics");
    std::array<cudnnBackendDescriptor_t, kMost> native{};
    for (Descriptor& choice : choices_) choice = Descriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    for (std::size_t i = 0; i < kMost; ++i) native[i] = choices_[i].native();
    std::int64_t count = 0;
    check(api().get_attribute(heuristics_.native(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                              CUDNN_TYPE_BACKEND_DESCRIPTOR, kMost, &count, native.data()),
          "engine heuristics");
    count_ = static_cast<std::size_t>(count);
  }
  std::span<Descriptor> all() { return std::span(choices_).first(count_); }

 private:
  static constexpr std::size_t kMost = 8;
  Descriptor heuristics_;
  std::array<Descriptor, kMost> choices_;
  std::size_t count_ = 0;
};

}  // namespace

void check(cudnnStatus_t status, std::string_view what) {
  if (status != CUDNN_STATUS_SUCCESS)
    throw Refused(
        fmt::format("cuDNN refuses {}: {}{}", what, api().get_error_string(status), last_words()));
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  check(api().create_descriptor(type, &native_),
        fmt::format("a descriptor of type {}", static_cast<int>(type)));
}

Descriptor::~Descriptor() {
  if (native_) api().destroy_descriptor(native_);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(native_, other.native_);
  return *this;
}

void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     std::int64_t count, const void* values) {
  const cudnnStatus_t status = api().set_attribute(native_, name, type, count, values);
  if (status != CUDNN_STATUS_SUCCESS)
    check(status, fmt::format("attribute {}", static_cast<int>(name)));
}
void Descriptor::set(cudnnBackendAttributeName_t name, std::int64_t value) {
  set(name, CUDNN_TYPE_INT64, 1, &value);
}
void Descriptor::set(cudnnBackendAttributeName_t name, bool value) {
  set(name, CUDNN_TYPE_BOOLEAN, 1, &value);
}
void Descriptor::set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
  set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}
void Descriptor::set(cudnnBackendAttributeName_t name, cudnnHandle_t value) {
  set(name, CUDNN_TYPE_HANDLE, 1, &value);
}
void Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& value) {
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.native_);
}

void Descriptor::finalize(std::string_view what) {
  check(api().finalize(native_), what);
}

Descriptor device_from_json(std::string_view json) {
  Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
             static_cast<std::int64_t>(json.size()), json.data());
  device.finalize("the device description");
  return device;
}

Extents packed_strides(const Extents& extents) {
  return {extents[1] * extents[2] * extents[3], extents[2] * extents[3], extents[3], 1};
}

Graph::Node Graph::add(std::int64_t uid, cudnnDataType_t type, const Extents& extents,
                       const Extents& strides, const Options& options) {
  constexpr std::int64_t kAlignment = 16;  // bytes: one vector load
  Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, extents.data());
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, uid);
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
  tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, options.is_virtual);
  tensor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, options.by_value);
  if (options.interleaved) {
    const cudnnBackendTensorReordering_t order = CUDNN_TENSOR_REORDERING_F16x16;
    tensor.set(CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TYPE_TENSOR_REORDERING_MODE, 1, &order);
  }
  tensor.finalize("a tensor");
  tensors_.push_back({std::move(tensor), extents});
  return static_cast<Node>(tensors_.size()) - 1;
}

Graph::Node Graph::memory(std::int64_t uid, cudnnDataType_t type, const Extents& extents,
                          const Extents& strides, bool interleaved) {
  return add(uid, type, extents, strides, {.interleaved = interleaved});
}

Graph::Node Graph::between(cudnnDataType_t type, const Extents& extents, const Extents& strides) {
  return add(next_uid_++, type, extents, strides, {.is_virtual = true});
}

template <class T>
Graph::Node Graph::add_constant(cudnnDataType_t type, T value) {
  Constant constant{.uid = next_uid_++, .value = {}};
  static_assert(sizeof(T) == sizeof(constant.value));
  std::memcpy(constant.value.data(), &value, sizeof(T));
  constants_.push_back(constant);
  return add(constant.uid, type, {1, 1, 1, 1}, {1, 1, 1, 1}, {.by_value = true});
}
Graph::Node Graph::constant(float value) {
  return add_constant(CUDNN_DATA_FLOAT, value);
}
Graph::Node Graph::constant(std::int32_t value) {
  return add_constant(CUDNN_DATA_INT32, value);
}

Graph::Node Graph::matmul(Node a, Node b, Node into) {
  if (into == kNone) {
    const Extents result{extents(a)[0], extents(a)[1], extents(a)[2], extents(b)[3]};
    into = between(CUDNN_DATA_FLOAT, result, packed_strides(result));
  }
  Descriptor how(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  how.finalize("a product");
  Descriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(a));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(b));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(into));
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  operation.finalize("a product");
  parts_.push_back(std::move(how));
  operations_.push_back(std::move(operation));
  return into;
}

Graph::Node Graph::reduce(cudnnReduceTensorOp_t mode, Node x, Node into) {
  Descriptor how(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
  how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  how.finalize("a reduction");
  Descriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x));
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(into));
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  operation.finalize("a reduction");
  parts_.push_back(std::move(how));
  operations_.push_back(std::move(operation));
  return into;
}

Graph::Node Graph::reshape(Node x, Node into) {
  Descriptor operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, at(x));
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, at(into));
  operation.finalize("a reshape");
  operations_.push_back(std::move(operation));
  return into;
}

Graph::Node Graph::pointwise(const Pointwise& p) {
  const Node into =
      p.into != kNone ? p.into : between(p.precision, extents(p.x), packed_strides(extents(p.x)));
  Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p.mode);
  how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, p.precision);
  if (p.dim >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, static_cast<std::int64_t>(p.dim));
  how.finalize("an element-wise operation");
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(p.x));
  if (p.b != kNone) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(p.b));
  if (p.t != kNone) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(p.t));
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(into));
  operation.finalize(fmt::format("element-wise operation {}", static_cast<int>(p.mode)));
  parts_.push_back(std::move(how));
  operations_.push_back(std::move(operation));
  return into;
}

Descriptor Graph::operation_graph(const Target& target) {
  std::vector<cudnnBackendDescriptor_t> native;
  for (const Descriptor& operation : operations_) native.push_back(operation.native());
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<std::int64_t>(native.size()), native.data());
  if (target.handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target.handle);
  graph.finalize("the graph");
  return graph;
}

Plan Graph::compile(const Target& target) && {
  Descriptor graph = operation_graph(target);
  Proposals proposals(graph, target);
  std::string refusals;
  for (Descriptor& choice : proposals.all()) {
    try {
      Plan plan;
      plan.native_ = Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.native_.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, choice);
      if (target.handle)
        plan.native_.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, target.handle);
      else
        plan.native_.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.properties);
      plan.native_.finalize("the plan");
      std::int64_t count = 0;
      check(api().get_attribute(plan.native_.native(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                CUDNN_TYPE_INT64, 1, &count, &plan.workspace_bytes_),
            "the size of a workspace");
      plan.graph_ = std::move(*this);
      plan.native_graph_ = std::move(graph);
      plan.choice_ = std::move(choice);
      return plan;
    } catch (const Refused& refused) {
      if (!refusals.empty()) refusals += "; ";
      refusals += refused.what();
    }
  }
  if (refusals.empty()) refusals = "cuDNN has no engine for this graph" + last_words();
  throw Refused(refusals);
}

void Plan::execute(cudnnHandle_t handle, std::span<const Binding> bindings, void* workspace) const {
  constexpr std::size_t kMost = 32;
  std::array<std::int64_t, kMost> uids{};
  std::array<void*, kMost> data{};
  std::size_t count = 0;
  CHOIR_CHECK(bindings.size() + graph_.constants_.size() <= kMost, "{} tensors bound",
              bindings.size());
  for (const Binding& binding : bindings) uids[count] = binding.uid, data[count++] = binding.data;
  for (const Graph::Constant& constant : graph_.constants_)
    uids[count] = constant.uid, data[count++] = const_cast<std::byte*>(constant.value.data());
  // The pack is used once: a finalised pack cannot be changed.
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const auto n = static_cast<std::int64_t>(count);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, data.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finalize("the bound tensors");
  check(api().execute(handle, native_.native(), pack.native()), "to run a plan");
}

}  // namespace choir::cudnn

#endif
