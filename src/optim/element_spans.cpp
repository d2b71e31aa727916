#include "choir/optim/element_spans.hpp"

#include "choir/nn/shard.hpp"

namespace choir {
namespace {

/// The run goes on where the only row of the span ends, or would end with the padding between them.
bool joins_row(const ElementSpan& span, const Range& local, std::int64_t number) {
  return span.elements.width == 0 && number - span.elements.first == local.first - span.local.first;
}

/// The run is the next of rows of one width and one distance.
bool joins_rows(const ElementSpan& span, const Range& local, std::int64_t number) {
  const ops::ElementNumbers& e = span.elements;
  if (local.first != span.local.end()) return false;
  if (e.width == 0) return local.count == span.local.count && number >= e.first + local.count;
  return local.count == e.width && number == e.first + span.local.count / e.width * e.stride;
}

}  // namespace

std::vector<ElementSpan> element_spans(const Bucket& bucket) {
  std::vector<ElementSpan> spans;
  for (const Parameter* p : bucket.parameters)
    for (const ShardRun& run : shard_runs(*p)) {
      const Range local{p->offset + run.local, run.count};
      const std::int64_t number = p->position + run.logical;
      if (spans.empty() ||
          !(joins_row(spans.back(), local, number) || joins_rows(spans.back(), local, number))) {
        spans.push_back({local, {.first = number}});
        continue;
      }
      ElementSpan& span = spans.back();
      if (!joins_row(span, local, number) && span.elements.width == 0)
        span.elements = {.first = span.elements.first,
                         .width = local.count,
                         .stride = number - span.elements.first};
      span.local.count = local.end() - span.local.first;
    }
  return spans;
}

}  // namespace choir
