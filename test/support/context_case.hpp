#pragma once
// Modules on one rank of a layout, without an engine or a reducer, so that the tests see the
// requirements of a context axis. Tensors are functions of global indices.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/philox.hpp"
#include "choir/nn/parameter.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "kernels/rope/rope.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/nn/layers/self_attention.hpp"

namespace choir::test {

inline double value_at(const char* what, std::int64_t index) {
  return normal_at(philox_key(11, what), static_cast<std::uint64_t>(index));
}

/// Parameters, arena and pass of a rank.
class RankOfContext {
 public:
  RankOfContext(Device& device, Mesh& mesh, const char* precision, bool sequence,
                const ContextWay& way = {})
      : device_(&device),
        mesh_(&mesh),
        precision_(precision_of(precision)),
        arena_(device,
               device.kind() == DeviceKind::null ? Arena::kUnbounded : std::size_t{16} << 20),
        parameters_({.rank = mesh.along(Axis::tensor).rank(),
                     .ranks = mesh.along(Axis::tensor).size(),
                     .sequence = sequence && mesh.along(Axis::tensor).size() > 1}),
        pass_(Stream(device), arena_, precision_, kSeed,
              {.communicator = &mesh.along(Axis::tensor), .sequence = sequence},
              {.communicator = &mesh.along(Axis::context), .way = way}) {}

  /// Must be called after the modules registered their parameters: sets values away from the
  /// symmetric start, and zero gradients.
  void place() {
    parameters_.place(1);
    const auto bytes =
        static_cast<std::size_t>(parameters_.flat_size()) * size_of(precision_.master);
    values_ = Buffer(*device_, bytes), gradients_ = Buffer(*device_, bytes);
    parameters_.bind(precision_, values_.data(), values_.data(), gradients_.data());
    if (device_->kind() == DeviceKind::null) return;
    device_->zero(values_.data(), bytes);
    device_->zero(gradients_.data(), bytes);
    for (Parameter& p : parameters_.parameters()) {
      std::vector<double> local(static_cast<std::size_t>(p.local_count()), 0.0);
      for (const ShardRun& run : shard_runs(p))
        for (std::int64_t i = 0; i < run.count; ++i)
          local[static_cast<std::size_t>(run.local + i)] =
              (p.init.kind == Init::Kind::ones ? 1.0 : 0.0) +
              0.3 * value_at(p.name.c_str(), run.logical + i);
      put(local, p.master);
      p.gradient_live = !p.gradient_overwritten;
    }
  }

  ParameterSet& parameters() { return parameters_; }
  Pass& pass() { return pass_; }
  Arena& arena() { return arena_; }
  Mesh& mesh() { return *mesh_; }
  const Precision& precision() const { return precision_; }

  void put(const std::vector<double>& values, const TensorView& to) {
    std::vector<std::byte> host(to.bytes());
    for (std::size_t i = 0; i < values.size(); ++i)
      ref::store(host.data(), to.dtype, static_cast<std::int64_t>(i), values[i]);
    device_->copy_from_host(to.data, host.data(), host.size());
  }
  std::vector<double> get(const TensorView& from) {
    std::vector<std::byte> host(from.bytes());
    device_->copy_to_host(host.data(), from.data, host.size());
    std::vector<double> values(static_cast<std::size_t>(from.count()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = ref::load(host.data(), from.dtype, static_cast<std::int64_t>(i));
    return values;
  }

  /// All logical gradients. They are summed over the replicas unless the rule is to be broken;
  /// gradients that ranks of the tensor axis hold in part are summed over that axis.
  std::vector<double> gradients(bool over_replicas = true) {
    std::vector<double> flat =
        get({gradients_.data(), precision_.gradient, {parameters_.flat_size()}});
    Communicator& replicas = mesh_->host_replicas();
    if (over_replicas) replicas.all_reduce(flat.data(), flat.size(), DType::f64, ReduceOp::sum);
    std::vector<double> all;
    for (const Bucket& bucket : parameters_.buckets())
      for (const Parameter* p : bucket.parameters) {
        std::vector<bool> partial(static_cast<std::size_t>(p->local_count()));
        for (const PartialRun& run : partial_runs(*p))
          for (std::int64_t i = 0; i < run.count; ++i)
            partial[static_cast<std::size_t>(run.local + i)] = true;
        std::vector<double> logical(static_cast<std::size_t>(p->count()), 0.0);
        for (const ShardRun& run : shard_runs(*p))
          for (std::int64_t i = 0; i < run.count; ++i)
            if (run.owned || partial[static_cast<std::size_t>(run.local + i)])
              logical[static_cast<std::size_t>(run.logical + i)] =
                  flat[static_cast<std::size_t>(bucket.offset + p->offset + run.local + i)];
        mesh_->host_along(Axis::tensor)
            .all_reduce(logical.data(), logical.size(), DType::f64, ReduceOp::sum);
        all.insert(all.end(), logical.begin(), logical.end());
      }
    return all;
  }

  static constexpr std::uint64_t kSeed = 21;

 private:
  Device* device_;
  Mesh* mesh_;
  Precision precision_;
  Arena arena_;
  ParameterSet parameters_;
  Buffer values_, gradients_;
  Pass pass_;
};

/// Results of a module as one rank would have them.
struct ContextResult {
  std::vector<double> outputs, input_gradients, gradients;
};

/// Self-attention of [B, T, C].
struct AttentionContextCase {
  std::int64_t batch = 2, tokens = 7;
  SelfAttention::Options options{.width = 48, .heads = 12, .kv_heads = 12};
  const char* precision = "fp64";
  bool sequence = false;
  bool over_replicas = true;  ///< false breaks the rule
  ContextWay way{};

  ContextResult run(Device& device, Mesh& mesh) const { return on_rank(device, mesh, nullptr); }
  /// Peak of the bytes of activations.
  std::size_t peak(Device& device, Mesh& mesh) const {
    std::size_t bytes = 0;
    on_rank(device, mesh, &bytes);
    return bytes;
  }

 private:
  /// f(row of this rank, row among all [B*T]) for the rows that exist.
  template <class F>
  void each_row(const Pass& pass, const F& f) const {
    const Sequence& held = pass.sequence();
    for (std::int64_t i = 0; i < pass.share_rows(); ++i) {
      const std::int64_t row = pass.first_share_row() + i;
      if (row >= held.rows()) continue;
      const Sequence::Run run = held.run(row < held.run(0).rows ? 0 : 1);
      const std::int64_t inside = row - run.first_row;
      const std::int64_t position = run.first_position + inside % run.tokens;
      if (position < tokens) f(i, inside / run.tokens * tokens + position);
    }
  }
  /// Rows of this rank; rows of padding hold `padding`.
  std::vector<double> rows(const Pass& pass, const char* what, double padding) const {
    const std::int64_t width = options.width;
    std::vector<double> part(static_cast<std::size_t>(pass.share_rows() * width), padding);
    each_row(pass, [&](std::int64_t here, std::int64_t row) {
      for (std::int64_t c = 0; c < width; ++c)
        part[static_cast<std::size_t>(here * width + c)] = value_at(what, row * width + c);
    });
    return part;
  }
  /// All rows, collected from the ranks; every row has one rank (of data size 1).
  std::vector<double> assembled(RankOfContext& rank, const Tensor& part) const {
    const std::int64_t width = options.width;
    const std::vector<double> values = rank.get(part);
    std::vector<double> all(static_cast<std::size_t>(batch * tokens * width), 0.0);
    const bool mine = rank.pass().shares_rows() || rank.pass().tensor().rank() == 0;
    each_row(rank.pass(), [&](std::int64_t here, std::int64_t row) {
      for (std::int64_t c = 0; mine && c < width; ++c)
        all[static_cast<std::size_t>(row * width + c)] =
            values[static_cast<std::size_t>(here * width + c)];
    });
    rank.mesh().world().all_reduce(all.data(), all.size(), DType::f64, ReduceOp::sum);
    return all;
  }

  ContextResult on_rank(Device& device, Mesh& mesh, std::size_t* peak) const {
    RankOfContext rank(device, mesh, precision, sequence, way);
    rank.parameters().begin_bucket("attention");
    SelfAttention attention(rank.parameters(), "attention", options);
    rank.place();
    Pass& pass = rank.pass();
    const std::int64_t head_width = options.width / options.heads;
    const Buffer table_memory(device, static_cast<std::size_t>(tokens * head_width) *
                                          size_of(rank.precision().statistic));
    const TensorView table{table_memory.data(), rank.precision().statistic, {tokens, head_width}};
    ops::rope_table(pass.stream(), 10000, table);
    pass.begin(Mode::train, share_of_sequences(batch, tokens, pass.context()), 40);
    const bool real = device.kind() != DeviceKind::null;
    Tensor x = pass.allocate({pass.share_rows(), options.width}, "x");
    // Values of padding must have no effect, and no gradient is returned for it.
    if (real) rank.put(rows(pass, "x", 3.0), x);
    const Tensor y = attention.forward(pass, x, table);
    x.reset();
    Tensor d_y = pass.allocate(y.shape, "d_y");
    if (real) rank.put(rows(pass, "d_y", 0.0), d_y);
    const Tensor d_x = attention.backward(pass, d_y, table);
    if (peak) {
      *peak = rank.arena().peak();
      return {};
    }
    return {assembled(rank, y), assembled(rank, d_x), rank.gradients(over_replicas)};
  }
};

}  // namespace choir::test
