// libcudnn.so.9 for tests: the backend functions that choir uses, on host memory. A graph is kept
// as it was described. When a plan runs, the graph is interpreted operation by operation: the
// result is exactly that of the graph, element by element, without the fusion that makes the real
// library fast.
#include <cudnn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/ref_element.hpp"

struct cudnnContext {};

namespace {

using choir::DType;
using Index = std::array<std::int64_t, 4>;

int plans = 0;

struct Node {
  cudnnBackendDescriptorType_t type;
  bool final = false;
  std::map<int, std::vector<unsigned char>> values;

  template <class T>
  T get(int name, T otherwise = {}) const {
    const auto found = values.find(name);
    if (found == values.end() || found->second.size() < sizeof(T)) return otherwise;
    T value;
    std::memcpy(&value, found->second.data(), sizeof(T));
    return value;
  }
  template <class T>
  std::vector<T> all(int name) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<T> list(found->second.size() / sizeof(T));
    std::memcpy(list.data(), found->second.data(), found->second.size());
    return list;
  }
  const Node* at(int name) const { return static_cast<const Node*>(get<void*>(name)); }
};
Node& node(cudnnBackendDescriptor_t of) {
  return *static_cast<Node*>(of);
}

DType type_of(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
      return DType::f32;
    case CUDNN_DATA_BFLOAT16:
      return DType::bf16;
    case CUDNN_DATA_HALF:
      return DType::f16;
    default:
      return DType::i32;  // integers and booleans
  }
}

/// A tensor while a plan runs: memory of the caller or of this run.
struct Tensor {
  Index extents{}, strides{};
  DType type = DType::f32;
  void* data = nullptr;
  std::shared_ptr<std::vector<unsigned char>> own;

  std::int64_t offset(const Index& i) const {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < 4; ++d) at += extents[d] == 1 ? 0 : i[d] * strides[d];
    return at;
  }
  double load(const Index& i) const {
    if (type == DType::i32) return static_cast<const std::int32_t*>(data)[offset(i)];
    return choir::ref::load(data, type, offset(i));
  }
  void store(const Index& i, double value) const {
    if (type == DType::i32)
      static_cast<std::int32_t*>(data)[offset(i)] = static_cast<std::int32_t>(value);
    else
      choir::ref::store(data, type, offset(i), value);
  }
  template <class F>
  void for_each(const F& f) const {
    Index i{};
    for (i[0] = 0; i[0] < extents[0]; ++i[0])
      for (i[1] = 0; i[1] < extents[1]; ++i[1])
        for (i[2] = 0; i[2] < extents[2]; ++i[2])
          for (i[3] = 0; i[3] < extents[3]; ++i[3]) f(i);
  }
};

class Run {
 public:
  Run(const Node& graph, const Node& pack) {
    const auto uids = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto data = pack.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (std::size_t i = 0; i < uids.size(); ++i) bound_[uids[i]] = data[i];
    // The workspace must be aligned like memory of cudaMalloc: kernels that load its parts by TMA
    // need that.
    const auto* workspace = pack.get<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    good_ = reinterpret_cast<std::uintptr_t>(workspace) % 256 == 0;
    for (const void* one : graph.all<void*>(CUDNN_ATTR_OPERATIONGRAPH_OPS))
      execute(*static_cast<const Node*>(one));
  }
  bool good() const { return good_; }

 private:
  Tensor& tensor(const Node* described) {
    const auto uid = described->get<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    const auto found = tensors_.find(uid);
    if (found != tensors_.end()) return found->second;
    Tensor made;
    made.extents = described->get<Index>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    made.strides = described->get<Index>(CUDNN_ATTR_TENSOR_STRIDES);
    made.type = type_of(described->get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE));
    if (described->get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL)) {
      std::int64_t last = 0;
      for (std::size_t d = 0; d < 4; ++d) last += (made.extents[d] - 1) * made.strides[d];
      made.own = std::make_shared<std::vector<unsigned char>>(static_cast<std::size_t>(last + 1) *
                                                              choir::size_of(made.type));
      made.data = made.own->data();
    } else if (bound_.count(uid) != 0) {
      made.data = bound_.at(uid);
    } else {
      good_ = false;  // a tensor whose memory is not bound
      made.own = std::make_shared<std::vector<unsigned char>>(1 << 24);
      made.data = made.own->data();
    }
    return tensors_.emplace(uid, made).first->second;
  }

  void execute(const Node& o) {
    switch (o.type) {
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return matmul(tensor(o.at(CUDNN_ATTR_OPERATION_MATMUL_ADESC)),
                      tensor(o.at(CUDNN_ATTR_OPERATION_MATMUL_BDESC)),
                      tensor(o.at(CUDNN_ATTR_OPERATION_MATMUL_CDESC)));
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return reduce(o.at(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
                          ->get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR),
                      tensor(o.at(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)),
                      tensor(o.at(CUDNN_ATTR_OPERATION_REDUCTION_YDESC)));
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: {
        const Tensor& x = tensor(o.at(CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
        return reshape(x, tensor(o.at(CUDNN_ATTR_OPERATION_RESHAPE_YDESC)));
      }
      default:
        return pointwise(o);
    }
  }

  /// Products of one [m, k] by [k, n] for every sample and head; groups of heads share the heads of
  /// b.
  static void matmul(const Tensor& a, const Tensor& b, const Tensor& c) {
    const std::int64_t group = c.extents[1] / b.extents[1];
    c.for_each([&](const Index& i) {
      double sum = 0;
      for (std::int64_t p = 0; p < a.extents[3]; ++p)
        sum += a.load({i[0], i[1], i[2], p}) * b.load({i[0], i[1] / group, p, i[3]});
      c.store(i, sum);
    });
  }

  /// Reduces every extent to that of the result.
  static void reduce(cudnnReduceTensorOp_t mode, const Tensor& x, const Tensor& y) {
    y.for_each([&](const Index& i) {
      const Tensor part{.extents = {x.extents[0] / y.extents[0], x.extents[1] / y.extents[1],
                                    x.extents[2] / y.extents[2], x.extents[3] / y.extents[3]}};
      double result = mode == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0;
      part.for_each([&](const Index& j) {
        Index at{};
        for (std::size_t d = 0; d < 4; ++d) at[d] = i[d] * part.extents[d] + j[d];
        const double value = x.load(at);
        result = mode == CUDNN_REDUCE_TENSOR_MAX ? std::max(result, value) : result + value;
      });
      y.store(i, result);
    });
  }

  /// The same memory under other extents and strides, converted to the type of y.
  static void reshape(const Tensor& x, Tensor& y) {
    x.for_each([&](const Index& i) {
      const Tensor flat{.extents = {1, 1, 1, 1}, .type = y.type, .data = y.data};
      Tensor target = flat;
      target.data = static_cast<unsigned char*>(y.data) +
                    x.offset(i) * static_cast<std::int64_t>(choir::size_of(y.type));
      target.store({}, x.load(i));
    });
  }

  void pointwise(const Node& o) {
    const Node* how = o.at(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = how->get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    const auto dim = static_cast<std::size_t>(how->get<std::int64_t>(CUDNN_ATTR_POINTWISE_AXIS));
    const auto optional = [&](int name) {
      const Node* described = o.at(name);
      return described ? &tensor(described) : nullptr;
    };
    const Tensor& x = tensor(o.at(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
    const Tensor* b = optional(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const Tensor* t = optional(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    const Tensor& y = tensor(o.at(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    y.for_each([&](const Index& i) {
      const double left = x.load(i), right = b ? b->load(i) : 0;
      y.store(i,
              element(mode, left, right, t ? t->load(i) != 0 : false, static_cast<double>(i[dim])));
    });
  }

  double element(cudnnPointwiseMode_t mode, double x, double b, bool chosen, double index) {
    switch (mode) {
      case CUDNN_POINTWISE_ADD:
        return x + b;
      case CUDNN_POINTWISE_SUB:
        return x - b;
      case CUDNN_POINTWISE_MUL:
        return x * b;
      case CUDNN_POINTWISE_DIV:
        return x / b;
      case CUDNN_POINTWISE_EXP:
        return std::exp(x);
      case CUDNN_POINTWISE_LOG:
        return std::log(x);
      case CUDNN_POINTWISE_IDENTITY:
        return x;
      case CUDNN_POINTWISE_CMP_GE:
        return x >= b ? 1 : 0;
      case CUDNN_POINTWISE_GEN_INDEX:
        return index;
      case CUDNN_POINTWISE_BINARY_SELECT:
        return chosen ? x : b;
      default:
        good_ = false;
        return NAN;
    }
  }

  std::map<std::int64_t, void*> bound_;
  std::map<std::int64_t, Tensor> tensors_;
  bool good_ = true;
};

size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    default:
      return 4;
  }
}

}  // namespace

extern "C" {

int fake_cudnn_plans() {
  return plans;
}

size_t cudnnGetVersion() {
  return 91900;
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_BAD_PARAM";
}
void cudnnGetLastErrorString(char* text, size_t size) {
  std::strncpy(text, "the pretender", size);
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t) {
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* made) {
  *made = new Node{type};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t of) {
  delete &node(of);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t of,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  if (node(of).final) return CUDNN_STATUS_BAD_PARAM;
  const auto* first = static_cast<const unsigned char*>(values);
  node(of).values[name].assign(first, first + static_cast<size_t>(count) * bytes_of(type));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t of,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t, int64_t* count,
                                       void* values) {
  *count = 1;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    *static_cast<int64_t*>(values) = 256;
    return CUDNN_STATUS_SUCCESS;
  }
  if (name != CUDNN_ATTR_ENGINEHEUR_RESULTS) return CUDNN_STATUS_BAD_PARAM;
  // The choice stores the graph for which it was made.
  Node& choice = node(*static_cast<cudnnBackendDescriptor_t*>(values));
  choice.values[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] =
      node(of).values[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH];
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t of) {
  if (node(of).final) return CUDNN_STATUS_BAD_PARAM;
  node(of).final = true;
  plans += node(of).type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const Node* choice = node(plan).at(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const Run run(*choice->at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH), node(pack));
  return run.good() ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

}  // extern "C"
