#include "src/comm/null_communicator.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>
#include <type_traits>
#include <vector>

#include "choir/core/error.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

void write_bytes(std::ofstream& file, const std::string& bytes) {
  const std::uint64_t length = bytes.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(bytes.data(), static_cast<std::streamsize>(length));
}

bool read_bytes(std::ifstream& file, std::string& bytes) {
  std::uint64_t length = 0;
  if (!file.read(reinterpret_cast<char*>(&length), sizeof length)) return false;
  bytes.resize(length);
  return static_cast<bool>(file.read(bytes.data(), static_cast<std::streamsize>(length)));
}

}  // namespace

std::int64_t RehearsedPhase::calls() const {
  return std::accumulate(groups.begin(), groups.end(), std::int64_t{0},
                         [](std::int64_t n, const RehearsedGroup& g) { return n + g.calls; });
}

double RehearsedPhase::bytes() const {
  return std::accumulate(groups.begin(), groups.end(), 0.0,
                         [](double n, const RehearsedGroup& g) { return n + g.bytes; });
}

Rehearsal::Rehearsal(int rank, std::string script) : rank_(rank), path_(std::move(script)) {
  if (rank_ != 0) read_script();
}

void Rehearsal::read_script() {
  std::ifstream file(path_, std::ios::binary);
  if (!file) throw StorageError("cannot read " + path_, "play rank 0 first: it writes this file");
  std::string group, said;
  while (read_bytes(file, group) && read_bytes(file, said)) script_[group].push_back(said);
}

void Rehearsal::write_script() const {
  std::ofstream file(path_, std::ios::binary | std::ios::trunc);
  for (const auto& [group, all] : script_)
    for (const std::string& said : all) {
      write_bytes(file, group);
      write_bytes(file, said);
    }
  if (!file.flush()) throw StorageError("cannot write " + path_, "is the disk full?");
}

Rehearsal::Usage Rehearsal::usage() {
  Usage all;
  all.time = now_seconds();
  std::ifstream file("/proc/self/io");
  std::string key;
  for (std::int64_t value = 0; file >> key >> value;) {
    if (key == "rchar:" || key == "wchar:") all.file_bytes += static_cast<double>(value);
    if (key == "syscr:" || key == "syscw:") all.file_calls += value;
  }
  return all;
}

void Rehearsal::close_phase() {
  const Usage now = usage();
  if (open_) {
    RehearsedPhase& phase = phases_[current_];
    phase.seconds += now.time - began_.time;
    phase.file_calls += now.file_calls - began_.file_calls;
    phase.file_bytes += now.file_bytes - began_.file_bytes;
    phase.resident = resident_bytes();
  }
  open_ = false;
  began_ = now;
}

void Rehearsal::enter(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (open_ && phases_[current_].name == name) return;
  close_phase();
  const auto found = std::find_if(phases_.begin(), phases_.end(),
                                  [&](const RehearsedPhase& phase) { return phase.name == name; });
  current_ = static_cast<std::size_t>(found - phases_.begin());
  if (found == phases_.end()) phases_.push_back({.name = std::string(name)});
  open_ = true;
}

std::vector<RehearsedPhase> Rehearsal::finish() {
  const std::lock_guard lock(mutex_);
  close_phase();
  if (rank_ == 0) write_script();
  return phases_;
}

void Rehearsal::count(const std::string& group, int ranks, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  std::vector<RehearsedGroup>& groups = phases_[current_].groups;
  auto found = std::find_if(groups.begin(), groups.end(),
                            [&](const RehearsedGroup& g) { return g.name == group; });
  if (found == groups.end()) found = groups.insert(found, {.name = group, .ranks = ranks});
  ++found->calls;
  found->bytes += static_cast<double>(bytes);
}

void Rehearsal::say(const std::string& group, const void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (rank_ != 0 || bytes == 0) return;
  script_[group].emplace_back(static_cast<const char*>(data), bytes);
}

void Rehearsal::hear(const std::string& group, void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes == 0) return;
  std::memset(data, 0, bytes);
  const auto said = script_.find(group);
  if (said == script_.end() || said->second.empty()) return;
  const std::string next = std::move(said->second.front());
  said->second.pop_front();
  if (next.size() != bytes)
    throw CommError(fmt::format("rehearsal: rank {} expects a broadcast of {} bytes in {}, but "
                                "the root sends {}",
                                rank_, bytes, group, next.size()),
                    "every rank of a communicator makes the same calls in the same order");
  std::memcpy(data, next.data(), bytes);
}

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

constexpr int kTags = 29999;  // the smallest limit of all communicators

class NullCommunicator : public Communicator {
 public:
  NullCommunicator(const std::string& name, int rank, int size, Device* device)
      : Communicator(name, rank, size), device_(device) {
    CHOIR_CHECK(size >= 1 && rank >= 0 && rank < size, "rank {} of {} in {}", rank, size, name);
  }
  const char* transport() const override { return "null"; }
  std::unique_ptr<CommBuffer> allocate(std::size_t bytes) override {
    if (device_ != nullptr) return std::make_unique<DeviceBlock>(*device_, bytes);
    auto block = std::make_unique<ReservedBuffer>(bytes);
    count_as_allocated(block->data(), bytes);
    return block;
  }
  void count_as_allocated(const void* data, std::size_t bytes) {
    blocks_.push_back({static_cast<const std::byte*>(data), bytes});
  }
  void keep_journal(WorkJournal* journal, int group) { journal_ = journal, group_ = group; }

  void do_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp, Summation) override {
    note(CallKind::all_reduce, data, count * size_of(dtype));
    tally(count * size_of(dtype));
  }
  void do_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp, Summation) override {
    note(CallKind::reduce_scatter, data, count * size_of(dtype) * ranks());
    tally(count * size_of(dtype) * ranks());
  }
  void do_all_gather(void* data, std::size_t count, DType dtype) override {
    note(CallKind::all_gather, data, count * size_of(dtype) * ranks());
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
  // The root receives the bytes of all ranks.
  void do_gather(const void*, std::size_t bytes, void*, const std::int64_t* counts,
                 const std::int64_t*, int root) override {
    tally(rank() == root ? static_cast<std::size_t>(std::accumulate(counts, counts + size(), 0LL))
                         : bytes);
  }
  void do_all_to_all(const void* send, void*, std::size_t bytes) override {
    note(CallKind::all_to_all, send, bytes * ranks());
    tally(bytes * ranks());
  }
  void do_send(const void*, std::size_t bytes, int, int) override { tally(bytes); }
  void do_receive(void*, std::size_t bytes, int, int) override { tally(bytes); }
  void do_barrier() override { tally(0); }
  CommRequest& do_start_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                                   Summation order) override {
    const Started started(*this);
    do_all_reduce(data, count, dtype, op, order);
    return done_;
  }
  CommRequest& do_start_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                                       Summation order) override {
    const Started started(*this);
    do_reduce_scatter(data, count, dtype, op, order);
    return done_;
  }
  CommRequest& do_start_all_gather(void* data, std::size_t count, DType dtype) override {
    const Started started(*this);
    do_all_gather(data, count, dtype);
    return done_;
  }
  ExchangeRequest& do_start_exchange(std::span<const Message> messages) override {
    const Started started(*this);
    std::size_t sent = 0, received = 0;
    for (const Message& m : messages) (m.send ? sent : received) += m.bytes;
    note(CallKind::message, nullptr, std::max(sent, received));
    tally(check_exchange(messages, kTags));
    return done_;
  }
  std::unique_ptr<Communicator> duplicate(const std::string& name) override {
    return make_null_communicator(name, rank(), size(), device_);
  }

 private:
  /// Marks the calls made in its scope as asynchronous.
  struct Started {
    explicit Started(NullCommunicator& comm) : of(comm) { of.started_ = true; }
    ~Started() { of.started_ = false; }
    Started(const Started&) = delete;
    Started& operator=(const Started&) = delete;
    NullCommunicator& of;
  };
  struct Block {
    const std::byte* data;
    std::size_t bytes;
  };

  void note(CallKind kind, const void* data, std::size_t bytes) {
    if (journal_ == nullptr || !journal_->on() || size() == 1) return;
    const auto* at = static_cast<const std::byte*>(data);
    const bool window = std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& b) {
      return at >= b.data && at < b.data + b.bytes;
    });
    journal_->call(
        {.group = group_, .kind = kind, .started = started_, .window = window, .bytes = bytes});
  }

  std::vector<Block> blocks_;  // blocks that count as allocated here, released ones included
  WorkJournal* journal_ = nullptr;
  int group_ = 0;
  bool started_ = false;

 protected:
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  virtual void tally(std::size_t bytes) {
    ++traffic_.calls;
    traffic_.bytes += static_cast<double>(bytes);
  }

 private:
  Device* device_;  // nullptr: blocks are addresses of the host
  DoneRequest done_;
};

template <class T>
void multiply(void* data, std::size_t count, int factor) {
  for (T *at = static_cast<T*>(data), *end = at + count; at != end; ++at)
    if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
      *at = T(static_cast<float>(*at) * static_cast<float>(factor));
    else
      *at = static_cast<T>(*at * static_cast<T>(factor));
}

/// Replaces each element by the sum of `ranks` equal terms; integers wrap around.
void add_equals(void* data, std::size_t count, DType dtype, int ranks) {
  switch (dtype) {
    case DType::f64:
      return multiply<double>(data, count, ranks);
    case DType::f32:
      return multiply<float>(data, count, ranks);
    case DType::bf16:
      return multiply<bf16>(data, count, ranks);
    case DType::f16:
      return multiply<f16>(data, count, ranks);
    case DType::i64:
      return multiply<std::uint64_t>(data, count, ranks);
    case DType::i32:
      return multiply<std::uint32_t>(data, count, ranks);
    case DType::u16:
      return multiply<std::uint16_t>(data, count, ranks);
    case DType::u8:
      return multiply<std::uint8_t>(data, count, ranks);
  }
}

class RehearsedCommunicator final : public NullCommunicator {
 public:
  /// `path` is its name relative to the communicator of which it is a duplicate.
  RehearsedCommunicator(const std::string& name, const std::string& path, int rank, int size,
                        Rehearsal& book)
      : NullCommunicator(name, rank, size, nullptr), path_(path), book_(book) {}
  Rehearsal& book() const { return book_; }
  const char* transport() const override { return "rehearsed"; }

  void do_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                     Summation order) override {
    NullCommunicator::do_all_reduce(data, count, dtype, op, order);
    if (op == ReduceOp::sum) add_equals(data, count, dtype, size());
  }
  void do_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                         Summation order) override {
    NullCommunicator::do_reduce_scatter(data, count, dtype, op, order);
    const std::size_t bytes = count * size_of(dtype);
    if (op == ReduceOp::sum) add_equals(block(data, rank(), bytes), count, dtype, size());
  }
  void do_all_gather(void* data, std::size_t count, DType dtype) override {
    NullCommunicator::do_all_gather(data, count, dtype);
    const std::size_t bytes = count * size_of(dtype);
    for (int r = 0; r < size(); ++r)
      if (r != rank()) std::memcpy(block(data, r, bytes), block(data, rank(), bytes), bytes);
  }
  void do_broadcast(void* data, std::size_t bytes, int root) override {
    NullCommunicator::do_broadcast(data, bytes, root);
    if (root == rank())
      book_.say(path_, data, bytes);
    else
      book_.hear(path_, data, bytes);
  }
  void do_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root) override {
    NullCommunicator::do_reduce(data, count, dtype, op, root);
    if (op == ReduceOp::sum && root == rank()) add_equals(data, count, dtype, size());
  }
  void do_scatter(const void* send, const std::int64_t* counts, const std::int64_t* offsets,
                  void* receive, std::size_t bytes, int root) override {
    NullCommunicator::do_scatter(send, counts, offsets, receive, bytes, root);
    if (bytes == 0) return;
    if (root == rank())
      std::memcpy(receive, static_cast<const std::byte*>(send) + offsets[rank()], bytes);
    else
      std::memset(receive, 0, bytes);
  }
  void do_gather(const void* send, std::size_t bytes, void* receive, const std::int64_t* counts,
                 const std::int64_t* offsets, int root) override {
    NullCommunicator::do_gather(send, bytes, receive, counts, offsets, root);
    if (root != rank() || bytes == 0) return;
    for (int r = 0; r < size(); ++r)
      std::memcpy(static_cast<std::byte*>(receive) + offsets[r], send,
                  std::min(bytes, static_cast<std::size_t>(counts[r])));
  }
  void do_all_to_all(const void* send, void* receive, std::size_t bytes) override {
    NullCommunicator::do_all_to_all(send, receive, bytes);
    const auto* mine =
        static_cast<const std::byte*>(send) + static_cast<std::size_t>(rank()) * bytes;
    for (int r = 0; r < size() && bytes > 0; ++r)
      std::memcpy(block(receive, r, bytes), mine, bytes);
  }
  void do_receive(void* data, std::size_t bytes, int from, int tag) override {
    NullCommunicator::do_receive(data, bytes, from, tag);
    if (bytes > 0) std::memset(data, 0, bytes);
  }
  ExchangeRequest& do_start_exchange(std::span<const Message> messages) override {
    for (const Message& m : messages)
      if (!m.send && m.bytes > 0) std::memset(m.data, 0, m.bytes);
    return NullCommunicator::do_start_exchange(messages);
  }
  std::unique_ptr<Communicator> duplicate(const std::string& name) override {
    return std::make_unique<RehearsedCommunicator>(name, path_ + "/" + name, rank(), size(), book_);
  }

 private:
  static std::byte* block(void* data, int r, std::size_t bytes) {
    return static_cast<std::byte*>(data) + static_cast<std::size_t>(r) * bytes;
  }
  void tally(std::size_t bytes) override {
    NullCommunicator::tally(bytes);
    if (size() > 1) book_.count(path_, size(), bytes);
  }
  std::string path_;
  Rehearsal& book_;
};

}  // namespace

std::unique_ptr<Communicator> make_null_communicator(const std::string& name, int rank, int size,
                                                     Device* device) {
  return std::make_unique<NullCommunicator>(name, rank, size, device);
}

std::unique_ptr<Communicator> make_rehearsed_communicator(const std::string& name, int rank,
                                                          int size, Rehearsal& book) {
  return std::make_unique<RehearsedCommunicator>(name, name, rank, size, book);
}

void journal_calls(Communicator& communicator, WorkJournal* journal, int group) {
  if (auto* planned = dynamic_cast<NullCommunicator*>(&communicator))
    planned->keep_journal(journal, group);
}

void count_as_allocated(Communicator& communicator, const void* data, std::size_t bytes) {
  if (auto* planned = dynamic_cast<NullCommunicator*>(&communicator))
    planned->count_as_allocated(data, bytes);
}

Rehearsal* rehearsal_of(const Communicator& communicator) {
  const auto* rehearsed = dynamic_cast<const RehearsedCommunicator*>(&communicator);
  return rehearsed == nullptr ? nullptr : &rehearsed->book();
}

}  // namespace choir
