#include "src/comm/null_communicator.hpp"

#include <sys/mman.h>

#include "choir/core/error.hpp"
#include "src/comm/communicator_parts.hpp"

namespace choir {
namespace {

class ReservedBuffer final : public CommBuffer {
 public:
  explicit ReservedBuffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
      throw CommError(fmt::format("cannot reserve {} bytes of addresses", bytes));
    data_ = at;
  }
  ~ReservedBuffer() override {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  ReservedBuffer(const ReservedBuffer&) = delete;
  ReservedBuffer& operator=(const ReservedBuffer&) = delete;
  void* data() const override { return data_; }
  std::size_t bytes() const override { return bytes_; }
  bool shared() const override { return false; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

constexpr int kTags = 29999;  // the fewest of all communicators

class NullCommunicator final : public Communicator {
 public:
  NullCommunicator(const std::string& name, int rank, int size, Device* device)
      : Communicator(name, rank, size), device_(device) {
    CHOIR_CHECK(size >= 1 && rank >= 0 && rank < size, "rank {} of {} in {}", rank, size, name);
  }
  const char* transport() const override { return "null"; }
  std::unique_ptr<CommBuffer> allocate(std::size_t bytes) override {
    if (device_ != nullptr) return std::make_unique<DeviceBlock>(*device_, bytes);
    return std::make_unique<ReservedBuffer>(bytes);
  }
  void do_all_reduce(void*, std::size_t count, DType dtype, ReduceOp, Summation) override {
    tally(count * size_of(dtype));
  }
  void do_reduce_scatter(void*, std::size_t count, DType dtype, ReduceOp, Summation) override {
    tally(count * size_of(dtype) * ranks());
  }
  void do_all_gather(void*, std::size_t count, DType dtype) override {
    tally(count * size_of(dtype) * ranks());
  }
  void do_broadcast(void*, std::size_t bytes, int) override { tally(bytes); }
  void do_reduce(void*, std::size_t count, DType dtype, ReduceOp, int) override {
    tally(count * size_of(dtype));
  }
  void do_scatter(const void*, const std::int64_t*, const std::int64_t*, void*, std::size_t bytes,
                  int) override {
    tally(bytes);
  }
  void do_gather(const void*, std::size_t bytes, void*, const std::int64_t*, const std::int64_t*,
                 int) override {
    tally(bytes);
  }
  void do_all_to_all(const void*, void*, std::size_t bytes) override { tally(bytes * ranks()); }
  void do_send(const void*, std::size_t bytes, int, int) override { tally(bytes); }
  void do_receive(void*, std::size_t bytes, int, int) override { tally(bytes); }
  void do_barrier() override { tally(0); }
  CommRequest& do_start_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                                   Summation order) override {
    do_all_reduce(data, count, dtype, op, order);
    return done_;
  }
  CommRequest& do_start_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                                       Summation order) override {
    do_reduce_scatter(data, count, dtype, op, order);
    return done_;
  }
  CommRequest& do_start_all_gather(void* data, std::size_t count, DType dtype) override {
    do_all_gather(data, count, dtype);
    return done_;
  }
  ExchangeRequest& do_start_exchange(std::span<const Message> messages) override {
    tally(check_exchange(messages, kTags));
    return done_;
  }
  std::unique_ptr<Communicator> duplicate(const std::string& name) override {
    return make_null_communicator(name, rank(), size(), device_);
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  void tally(std::size_t bytes) {
    ++traffic_.calls;
    traffic_.bytes += static_cast<double>(bytes);
  }
  Device* device_;  // nullptr: blocks are addresses of the host
  DoneRequest done_;
};

}  // namespace

std::unique_ptr<Communicator> make_null_communicator(const std::string& name, int rank, int size,
                                                     Device* device) {
  return std::make_unique<NullCommunicator>(name, rank, size, device);
}

}  // namespace choir
