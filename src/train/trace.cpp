#include "choir/train/trace.hpp"

#include <fmt/core.h>

#include <fstream>

#include "choir/comm/agreement.hpp"
#include "choir/core/clock.hpp"

namespace choir {
namespace {

constexpr std::size_t kMaxSpans = 1 << 16;

/// Texts of all ranks, in order, at rank 0.
std::string gather_text(const std::string& mine, Communicator& world) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(world.size()), 0);
  const auto bytes = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> eight(sizes.size(), sizeof bytes), at(sizes.size());
  for (std::size_t r = 0; r < at.size(); ++r) at[r] = static_cast<std::int64_t>(8 * r);
  world.gather(&bytes, sizeof bytes, sizes.data(), eight.data(), at.data(), 0);
  std::int64_t total = 0;
  for (std::size_t r = 0; r < at.size(); ++r) at[r] = total, total += sizes[r];
  std::string all(static_cast<std::size_t>(total), '\0');
  world.gather(mine.data(), mine.size(), all.data(), sizes.data(), at.data(), 0);
  return all;
}

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
  const double aligned = now_seconds();  // the same instant on every rank, to a barrier
  std::string text = fmt::format(
      "{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{0},\"args\":{{\"name\":\"rank "
      "{0}\"}}}},\n",
      world.rank());
  for (const Span& s : spans_)
    text += fmt::format(
        "{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":0,\"ts\":{:.3f},\"dur\":{:.3f},"
        "\"args\":{{\"step\":{}}}}},\n",
        s.name, world.rank(), (s.start - aligned) * 1e6, (s.end - s.start) * 1e6, s.step);
  const std::string all = gather_text(text, world);
  together(world, [&] {
    if (world.rank() != 0) return;
    std::ofstream file(path);
    file << "{\"traceEvents\":[\n" << all.substr(0, all.size() - 2) << "\n]}\n";
    if (!file.flush()) throw StorageError("cannot write the trace '" + path + "'");
  });
  written_ = true;
  spans_.clear();
}

}  // namespace choir
