#pragma once
// A stage whose tensors identify their origin: every activation and gradient carries numbers
// computed from its virtual stage, micro-batch and direction; received tensors are kept and
// compared.
#include <functional>
#include <random>
#include <vector>

#include "src/parallel/pipeline/pipeline_executor.hpp"
#include "test/unit/parallel/schedule_case.hpp"

namespace choir::test {

class FakeStage final : public StageWork {
 public:
  /// Messages of `count` numbers; they and the copies of received messages are on `device`.
  FakeStage(Device& device, const PipelineShape& shape, int stage, std::int64_t count)
      : shape_(shape),
        stage_(stage),
        count_(count),
        arena_(device, arena_bytes()),
        stream_(device),
        host_(device, memory_bytes()),
        sources_(device, memory_bytes()),
        seen_(device, memory_bytes()) {
    for (const bool gradient : {false, true})
      for (int c = 0; c < shape.chunks; ++c)
        for (int j = 0; j < shape.micro_batches; ++j)
          for (std::int64_t i = 0; i < count; ++i)
            numbers(host_, gradient, c, j)[i] =
                number(gradient, shape.virtual_stage(stage, c), j, i);
    if (device.kind() != DeviceKind::null)
      device.copy_from_host(sources_.data(), host_.data(), memory_bytes());
    begin();
  }
  ~FakeStage() override { stream_.synchronize(); }

  /// Must be called before each run.
  void begin() {
    wrong_order_ = 0;
    for (auto& next : next_) next.assign(static_cast<std::size_t>(shape_.chunks), 0);
    if (stream_.kind() != DeviceKind::null) stream_.zero(seen_.data(), memory_bytes());
  }
  /// Duration of a computation.
  std::function<void(const Action&)> spend = [](const Action&) {};

  Tensor receive_buffer(int, int, bool gradient) override { return tensor(gradient); }
  Tensor forward(int j, int c, Tensor input) override {
    enter({ActionKind::forward, j, c}, input, before(c));
    keep(false, c, j, input);
    input.reset();
    return behind(c) ? filled(false, c, j) : Tensor();
  }
  Tensor backward(int j, int c, Tensor d_output, bool with_weights) override {
    if (with_weights) count_weights(j, c);
    enter({with_weights ? ActionKind::backward : ActionKind::backward_input, j, c}, d_output,
          behind(c));
    if (next_[0][static_cast<std::size_t>(c)] <= j) ++wrong_order_;
    keep(true, c, j, d_output);
    d_output.reset();
    return before(c) ? filled(true, c, j) : Tensor();
  }
  void backward_weight(int j, int c) override {
    if (next_[1][static_cast<std::size_t>(c)] <= j) ++wrong_order_;
    count_weights(j, c);
    spend({ActionKind::backward_weight, j, c});
  }

  /// Returns "" if all operations ran once, in order, with the right numbers, and all tensors were
  /// released.
  std::string complaint(bool forward_only = false) {
    if (wrong_order_ > 0) return fmt::format("{} computations out of order", wrong_order_);
    for (const int kind : {0, 1, 2})
      for (const int done : next_[static_cast<std::size_t>(kind)])
        if (done != (forward_only && kind > 0 ? 0 : shape_.micro_batches))
          return fmt::format("{} micro-batches in direction {}", done, kind);
    if (arena_.live() != 0) return fmt::format("{} bytes are still held", arena_.live());
    if (stream_.kind() == DeviceKind::null) return "";
    stream_.device().copy_to_host(host_.data(), seen_.data(), memory_bytes());
    std::string text;
    for (const bool gradient : {false, true})
      for (int c = 0; c < shape_.chunks; ++c)
        for (int j = 0; j < shape_.micro_batches && text.empty(); ++j)
          if ((gradient ? behind(c) : before(c)) && !(gradient && forward_only))
            text = wrong_numbers(gradient, c, j);
    return text;
  }
  std::size_t peak() const { return arena_.peak(); }

 private:
  static double number(bool gradient, int virtual_stage, int micro_batch, std::int64_t i) {
    const double value =
        1e6 * (virtual_stage + 1) + 1e3 * (micro_batch + 1) + static_cast<double>(i % 997);
    return gradient ? -value : value;
  }
  std::size_t row_bytes() const { return static_cast<std::size_t>(count_) * sizeof(double); }
  std::size_t rows() const {
    return static_cast<std::size_t>(shape_.chunks) * static_cast<std::size_t>(shape_.micro_batches);
  }
  std::size_t memory_bytes() const { return 2 * rows() * row_bytes(); }
  std::size_t arena_bytes() const { return 4 * rows() * (row_bytes() + Arena::kAlignment) + 4096; }
  bool before(int c) const { return shape_.virtual_stage(stage_, c) > 0; }
  bool behind(int c) const { return shape_.virtual_stage(stage_, c) + 1 < shape_.virtual_stages(); }
  template <class Memory>
  double* numbers(const Memory& memory, bool gradient, int c, int j) const {
    const std::size_t row =
        (gradient ? rows() : 0) + static_cast<std::size_t>(c * shape_.micro_batches + j);
    return static_cast<double*>(memory.data()) + row * static_cast<std::size_t>(count_);
  }
  Tensor tensor(bool gradient) {
    return arena_.allocate(DType::f64, {1, count_}, gradient ? "gradient" : "activation");
  }
  Tensor filled(bool gradient, int c, int j) {
    Tensor out = tensor(gradient);
    stream_.copy(out.data, numbers(sources_, gradient, c, j), row_bytes());
    return out;
  }
  void enter(const Action& a, const Tensor& tensor, bool wanted) {
    int& next = next_[a.kind == ActionKind::forward ? 0 : 1][static_cast<std::size_t>(a.chunk)];
    if (next != a.micro_batch || tensor.empty() == wanted) ++wrong_order_;
    ++next;
    spend(a);
  }
  void count_weights(int j, int c) {
    int& next = next_[2][static_cast<std::size_t>(c)];
    if (next++ != j) ++wrong_order_;
  }
  void keep(bool gradient, int c, int j, const Tensor& tensor) {
    if (!tensor.empty()) stream_.copy(numbers(seen_, gradient, c, j), tensor.data, row_bytes());
  }
  std::string wrong_numbers(bool gradient, int c, int j) const {
    const int from = shape_.virtual_stage(stage_, c) + (gradient ? 1 : -1);
    for (std::int64_t i = 0; i < count_; ++i)
      if (const double got = numbers(host_, gradient, c, j)[i]; got != number(gradient, from, j, i))
        return fmt::format("{} of micro-batch {}, chunk {}: {} at {}, {} expected",
                           gradient ? "gradient" : "activation", j, c, got, i,
                           number(gradient, from, j, i));
    return "";
  }

  PipelineShape shape_;
  int stage_;
  std::int64_t count_;
  Arena arena_;
  Stream stream_;
  HostBuffer host_;
  Buffer sources_, seen_;
  std::array<std::vector<int>, 3> next_;  // forward, backward, weights: [chunks]
  int wrong_order_ = 0;
};

/// Calls body(kind, shape) for the schedules of `stages` stages, 1 to 6 micro-batches and 1 to 3
/// chunks.
template <class Body>
void each_run(int stages, Body&& body) {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
        ScheduleKind::zb_h1, ScheduleKind::forward_only})
    for (int m = 1; m <= 6; ++m)
      for (int v = 1; v <= 3; ++v)
        if (v == 1 || kind == ScheduleKind::interleaved || kind == ScheduleKind::forward_only)
          body(kind, PipelineShape{stages, m, v});
}

}  // namespace choir::test
