#include "src/train/loop/trace.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>

#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

constexpr std::size_t kMaxSpans = 1 << 16;

}  // namespace

Trace::Trace(std::int64_t first, std::int64_t last) : first_(first), last_(last) {
  if (last > 0) spans_.reserve(kMaxSpans);
}

void Trace::span(const char* name, double start, double end) {
  if (!recording()) return;
  if (spans_.size() == kMaxSpans)
    ++lost_;
  else
    spans_.push_back({name, step_, start, end});
}

void Trace::write(const std::string& path, Communicator& world) {
  world.barrier();
  const double aligned =
      now_seconds();  // the same instant on every rank, up to the duration of a barrier
  double first = 0;   // viewers drop spans before 0
  for (const Span& s : spans_) first = std::min(first, s.start - aligned);
  world.all_reduce(&first, 1, DType::f64, ReduceOp::min);
  std::string text = fmt::format(
      "{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{0},\"args\":{{\"name\":\"rank "
      "{0}\"}}}},\n",
      world.rank());
  for (const Span& s : spans_)
    text += fmt::format(
        "{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":0,\"ts\":{:.3f},\"dur\":{:.3f},"
        "\"args\":{{\"step\":{}}}}},\n",
        s.name, world.rank(), (s.start - aligned - first) * 1e6, (s.end - s.start) * 1e6, s.step);
  const std::vector<std::string> texts = gather_texts(world, text);
  together(world, [&] {
    if (world.rank() != 0) return;
    require_regular(path);
    std::ofstream file(path);
    file << "{\"traceEvents\":[\n";
    for (const std::string& one : texts) file << one;
    // JSON does not allow a trailing comma, so the number of lost spans comes last.
    file << fmt::format(
        "{{\"name\":\"lost spans\",\"ph\":\"M\",\"pid\":0,\"args\":{{\"n\":{}}}}}\n]}}\n", lost_);
    if (!file.flush()) throw StorageError("cannot write the trace '" + path + "'");
  });
  written_ = true;
  spans_.clear();
}

}  // namespace choir
