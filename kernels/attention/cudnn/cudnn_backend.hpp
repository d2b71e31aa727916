#pragma once
// cuDNN's C backend interface: the functions that choir uses, loaded at run time, and graphs of
// operations with their compiled plans. Types and constants come from its headers.

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"

namespace choir::cudnn {

struct Api {
  decltype(&cudnnGetVersion) get_version = nullptr;
  decltype(&cudnnGetErrorString) get_error_string = nullptr;
  decltype(&cudnnGetLastErrorString) get_last_error_string = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
};

/// Loads cuDNN on the first call; throws DeckError with absent_because() if it is missing.
const Api& api();

/// The reason why cuDNN cannot be used; empty if it is installed and new enough for the attention
/// patterns.
const std::string& absent_because();

/// "cuDNN 9.19.0 (libcudnn.so.9)"; empty if absent.
std::string version_text();

// A small layer over cuDNN's C backend: descriptors that free themselves, a builder for graphs of
// tensors and operations, and the compiled plan of such a graph. The backend fuses a graph into one
// kernel if it knows the pattern; otherwise it refuses with a message of its own. Tensors have four
// extents; tensors between two operations are virtual (never in memory) and hold f32 unless
// specified otherwise.

/// Thrown if cuDNN refuses a request; what() holds its message.
class Refused : public Error {
 public:
  explicit Refused(const std::string& what) : Error(ExitCode::other, what) {}
};

/// Throws Refused with the library's message unless `status` is success.
void check(cudnnStatus_t status, std::string_view what);

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept { *this = std::move(other); }
  Descriptor& operator=(Descriptor&& other) noexcept;

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
           const void* values);
  void set(cudnnBackendAttributeName_t name, std::int64_t value);
  void set(cudnnBackendAttributeName_t name, bool value);
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t value);
  void set(cudnnBackendAttributeName_t name, cudnnHandle_t value);
  void set(cudnnBackendAttributeName_t name, const Descriptor& value);
  /// Finalises the descriptor; no attribute can be set afterwards. `what` names the object in a
  /// refusal.
  void finalize(std::string_view what);

  cudnnBackendDescriptor_t native() const { return native_; }

 private:
  cudnnBackendDescriptor_t native_ = nullptr;
};

/// The device of a plan: that of a handle, or a described one (plans can be built, and refused, on
/// a machine without a GPU).
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* properties = nullptr;  ///< used if there is no handle
};

/// Creates a finalised device description from cuDNN's JSON format.
Descriptor device_from_json(std::string_view json);

using Extents = std::array<std::int64_t, 4>;
Extents packed_strides(const Extents& extents);

struct Binding {
  std::int64_t uid;
  void* data;
};

class Plan;

class Graph {
 public:
  /// Index of a tensor of the graph.
  using Node = int;
  static constexpr Node kNone = -1;

  /// A tensor in device memory, bound by uid when the plan runs. `interleaved` tensors have the
  /// order of tensor-core fragments (accumulators that only cuDNN reads).
  Node memory(std::int64_t uid, cudnnDataType_t type, const Extents& extents,
              const Extents& strides, bool interleaved = false);
  Node between(cudnnDataType_t type, const Extents& extents, const Extents& strides);
  Node constant(float value);
  Node constant(std::int32_t value);

  // Operations. Without `into` the result is a new packed tensor between operations.
  Node matmul(Node a, Node b, Node into = kNone);
  Node reduce(cudnnReduceTensorOp_t operation, Node x, Node into);
  Node reshape(Node x, Node into);
  struct Pointwise {
    cudnnPointwiseMode_t mode;
    Node x, b = kNone, t = kNone, into = kNone;
    int dim = -1;                                  // axis of GEN_INDEX
    cudnnDataType_t precision = CUDNN_DATA_FLOAT;  // precision of the operation and of a new result
  };
  Node pointwise(const Pointwise& operation);

  std::size_t operations() const { return operations_.size(); }
  /// Compiles the graph, which moves into the plan: 0.3 to 0.6 s. Throws Refused.
  Plan compile(const Target& target) &&;

 private:
  struct Tensor {
    Descriptor descriptor;
    Extents extents{};
  };
  struct Constant {
    std::int64_t uid;
    std::array<std::byte, 4> value;
  };
  struct Options {
    bool is_virtual = false, by_value = false, interleaved = false;
  };
  Node add(std::int64_t uid, cudnnDataType_t type, const Extents& extents, const Extents& strides,
           const Options& options);
  template <class T>
  Node add_constant(cudnnDataType_t type, T value);
  Descriptor operation_graph(const Target& target);
  const Descriptor& at(Node node) const {
    return tensors_[static_cast<std::size_t>(node)].descriptor;
  }
  const Extents& extents(Node node) const {
    return tensors_[static_cast<std::size_t>(node)].extents;
  }

  std::deque<Tensor> tensors_;
  std::deque<Descriptor> operations_;
  std::deque<Descriptor> parts_;  // descriptors besides tensors that operations refer to
  std::vector<Constant> constants_;
  std::int64_t next_uid_ = 1 << 16;  // smaller ids are the caller's
  friend class Plan;
};

/// A compiled graph. Owns everything it needs.
class Plan {
 public:
  Plan() = default;

  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  /// Queues the kernels on the handle's stream. Every memory() of the graph must be bound.
  void execute(cudnnHandle_t handle, std::span<const Binding> bindings, void* workspace) const;

 private:
  friend class Graph;
  Graph graph_;
  Descriptor native_graph_, choice_, native_;
  std::int64_t workspace_bytes_ = 0;
};

}  // namespace choir::cudnn
