#include "src/optim/file_reader_writer.hpp"

#include "choir/core/error.hpp"

namespace choir {

FileReaderWriter::FileReaderWriter(const OffloadMemory& file)
    : file_(&file), thread_([this] { run(); }) {}

FileReaderWriter::~FileReaderWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::uint64_t FileReaderWriter::post(const Job& job) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    CHOIR_CHECK(failure_ || posted_ - done_ < kMost, "{} jobs are not done", posted_ - done_);
    number = ++posted_;
    jobs_[number % kMost] = job;
  }
  changed_.notify_all();
  return number;
}

void FileReaderWriter::wait(std::uint64_t job) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= job || failure_; });
  if (failure_) std::rethrow_exception(failure_);
}

void FileReaderWriter::run() {
  std::unique_lock lock(mutex_);
  while (!failure_) {
    changed_.wait(lock, [&] { return done_ < posted_ || stop_; });
    if (done_ == posted_) return;
    const Job job = jobs_[(done_ + 1) % kMost];
    lock.unlock();
    std::exception_ptr thrown;
    try {
      work(job);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    failure_ = thrown;
    if (!failure_) ++done_;
    changed_.notify_all();
  }
}

void FileReaderWriter::work(const Job& job) const {
  for (int i = 0; i < job.pieces; ++i) {
    const Piece& piece = job.piece[static_cast<std::size_t>(i)];
    job.write ? file_->write(piece.memory, piece.offset, piece.bytes)
              : file_->read(piece.memory, piece.offset, piece.bytes);
  }
}

}  // namespace choir
