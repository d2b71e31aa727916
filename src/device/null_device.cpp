#include "src/device/null_device.hpp"

#include <utility>

namespace choir {

void* NullDevice::allocate(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  void* address = reinterpret_cast<void*>(next_);
  // A block of size 0 (an arena whose size is not known yet) receives a range in which it can grow.
  next_ += bytes == 0 ? std::uintptr_t{1} << 44 : (bytes + kPage - 1) / kPage * kPage;
  live_ += bytes;
  return address;
}

void WorkJournal::start(const WorkCounter& counter) {
  counter_ = &counter;
  before_ = counter;
  named_ = {};
  place_ = {.part = WorkPart::gradients};  // work before the first micro-batch is recorded nowhere
                                           // else
  record_ = {};
}

WorkRecord WorkJournal::stop() {
  settle();
  counter_ = nullptr;
  return std::exchange(record_, {});
}

void WorkJournal::enter(const WorkPlace& place) {
  settle();
  place_ = place;
  ++here().visits;
}

void WorkJournal::product(const ProductWork& work, double flops, double bytes) {
  ++here().products[work];
  named_.add(flops, bytes);
}

void WorkJournal::attention(const AttentionWork& work, double bytes) {
  ++here().attention[work];
  named_.add(work.flops, bytes);
}

int WorkJournal::add_group(const CallGroup& group) {
  record_.groups.push_back(group);
  return static_cast<int>(record_.groups.size()) - 1;
}

void WorkJournal::settle() {
  here().other_flops += counter_->flops - before_.flops - named_.flops;
  here().other_bytes += counter_->bytes - before_.bytes - named_.bytes;
  before_ = *counter_;
  named_ = {};
}

}  // namespace choir
