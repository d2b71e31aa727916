#pragma once
// A communicator that loses one of its messages until it is healed: for tests that must see a hang
// and continue afterwards.
#include <atomic>
#include <chrono>
#include <list>
#include <thread>
#include <vector>

#include "test/support/exchange_only.hpp"

namespace choir::test {

class DeafCommunicator final : public ExchangeOnly {
 public:
  explicit DeafCommunicator(Communicator& inner)
      : ExchangeOnly(inner.name(), inner.rank(), inner.size()), inner_(inner) {}

  /// Send number `count` (from 0) is not sent before heal().
  void lose_send(int count) { sends_left_ = count; }
  /// May be called from any thread.
  void heal() { healed_ = true; }

  ExchangeRequest& do_start_exchange(std::span<const Message> messages) override {
    Request& request = requests_.emplace_back();
    request.owner = this;
    for (const Message& m : messages) (lost(m) ? request.late : request.messages).push_back(m);
    request.inner = &inner_.start_exchange(request.messages);
    return request;
  }

  const char* transport() const override { return inner_.transport(); }
  std::unique_ptr<CommBuffer> allocate(std::size_t bytes) override {
    return inner_.allocate(bytes);
  }

 private:
  struct Request final : ExchangeRequest {
    void do_wait() override {
      while (!test()) pause();
      inner->wait();
      if (found != nullptr) found->wait();
    }
    void do_wait_received() override {
      for (owner->find_again(); !inner->test(); owner->find_again()) pause();
    }
    bool do_test() override {
      owner->find_again();
      return inner->test() && (late.empty() || (found != nullptr && found->test()));
    }
    DeafCommunicator* owner = nullptr;
    ExchangeRequest *inner = nullptr, *found = nullptr;
    std::vector<Message> messages, late;
  };
  static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
  void find_again() {
    if (!healed_) return;
    for (Request& request : requests_)
      if (!request.late.empty() && request.found == nullptr)
        request.found = &inner_.start_exchange(request.late);
  }
  bool lost(const Message& m) { return m.send && sends_left_ >= 0 && sends_left_-- == 0; }

  Communicator& inner_;
  std::list<Request> requests_;
  int sends_left_ = -1;
  std::atomic<bool> healed_ = false;
};

}  // namespace choir::test
