// Captured graphs: only events between streams order the nodes of different streams.
#include <algorithm>

#include "test/host_cuda/runtime.hpp"

namespace host_cuda {
namespace {

bool reached(const Clock& done, const Clock& after) {
  for (std::size_t b = 0; b < after.size(); ++b)
    if (done[b] < after[b]) return false;
  return true;
}

/// One run of a graph.
class Replay {
 public:
  Replay(std::shared_ptr<const Branches> graph, bool by_priority)
      : graph_(std::move(graph)),
        by_priority_(by_priority),
        done_(graph_->size()),
        progress_(graph_->size()),
        begun_(graph_->size()) {}

  /// Runs until every branch is at its end or waits for another process.
  bool operator()() {
    std::vector<bool> stalled(graph_->size());
    for (;;) {
      std::vector<std::size_t> able;
      bool ended = true;
      for (std::size_t b = 0; b < graph_->size(); ++b) {
        if (done_[b] == (*graph_)[b].size()) continue;
        ended = false;
        if (!stalled[b] && reached(done_, next(b).after)) able.push_back(b);
      }
      if (ended) return true;
      if (able.empty()) return false;
      const auto turn = [&](std::size_t b) {
        return std::pair(by_priority_ ? next(b).priority : 0, next(b).call);
      };
      std::sort(able.begin(), able.end(),
                [&](std::size_t a, std::size_t b) { return turn(a) < turn(b); });
      const std::size_t chosen = able[choose(able.size())];
      if (perform(chosen))
        ++done_[chosen];
      else
        stalled[chosen] = true;
    }
  }

 private:
  const Node& next(std::size_t branch) const { return (*graph_)[branch][done_[branch]]; }
  /// The operation behind the next one of the branch, if it is a kernel that may begin early and
  /// the next one lets it.
  const Operation* follower(std::size_t branch) const {
    const std::vector<Node>& nodes = (*graph_)[branch];
    const std::size_t at = done_[branch] + 1;
    if (at >= nodes.size() || !nodes[at].operation.early) return nullptr;
    const char* const ahead = nodes[at - 1].operation.kernel;
    return ahead && lets_next_begin(ahead) ? &nodes[at].operation : nullptr;
  }
  bool perform(std::size_t branch) {
    const Operation& operation = next(branch).operation;
    Progress& progress = progress_[branch];
    switch (operation.kind) {
      case Operation::Kind::work:
        if (operation.kernel) {
          const std::shared_ptr<EarlyBlock> block = std::move(begun_[branch]);
          const Operation* const behind = follower(branch);
          if (behind) begun_[branch] = behind->begin_block();
          operation.run_kernel(block);
        } else {
          operation.work();
        }
        return true;
      case Operation::Kind::peers:
        if (!progress) progress = operation.begin();
        if (!progress()) return false;
        progress = nullptr;
        return true;
      default:  // an event that is recorded again in every run
        operation.event->reached = ++operation.event->recorded;
        operation.event->time = now();
        return true;
    }
  }

  std::shared_ptr<const Branches> graph_;
  bool by_priority_;
  Clock done_;
  std::vector<Progress> progress_;                  // by branch, of the node that has begun
  std::vector<std::shared_ptr<EarlyBlock>> begun_;  // by branch, of its next kernel
};

}  // namespace

std::function<Progress()> replay(std::shared_ptr<const Branches> graph, bool by_priority) {
  return [=] { return Progress(Replay(graph, by_priority)); };
}

void join(HostCudaStream& stream, Capture& capture, const Clock& after) {
  if (stream.capture != &capture) {
    stream.capture = &capture;
    stream.branch = capture.branches.size();
    capture.branches.emplace_back();
    capture.known.emplace_back();
    for (Clock& known : capture.known) known.resize(capture.branches.size());
  }
  Clock& known = capture.known[stream.branch];
  stream.joined = !after.empty();
  for (std::size_t b = 0; b < after.size(); ++b) known[b] = std::max(known[b], after[b]);
}

}  // namespace host_cuda
