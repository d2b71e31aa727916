#pragma once
// The used part of NCCL's C interface, and the table of its functions, filled while the program
// runs. Names, numbers and layouts are NVIDIA's (nccl.h; nccl_api.cpp compares them with the header
// if it exists); only their spelling differs, so that a build needs no NCCL.
#include <cuda_runtime.h>

#include <climits>
#include <cstddef>
#include <string>

#include "src/core/process.hpp"

namespace choir::nccl {

using Comm = void*;
struct UniqueId {
  char internal[128];
};

enum class Result : int { success = 0, remote_error = 6, in_progress = 7 };
enum class Type : int { u8 = 1, i32 = 2, i64 = 4, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };
enum class Op : int { sum = 0, max = 2, min = 3 };

/// ncclConfig_t of version 2.18; newer libraries fill in their later fields.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 2 * 10000 + 18 * 100;
  int blocking = INT_MIN;  // INT_MIN here and below: undefined
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

/// Loads the library once per object. Local.
class Library {
 public:
  /// An empty `path` means the system's library.
  explicit Library(const std::string& path);
  bool loaded() const { return library_.loaded(); }
  const std::string& reason() const { return library_.reason(); }
  const std::string& soname() const { return library_.soname(); }
  /// "2.28.9"
  std::string version() const;

  Result (*get_version)(int*) = nullptr;
  Result (*get_unique_id)(UniqueId*) = nullptr;
  Result (*comm_init)(Comm*, int ranks, UniqueId, int rank, Config*) = nullptr;
  Result (*comm_finalize)(Comm) = nullptr;
  Result (*comm_destroy)(Comm) = nullptr;
  Result (*comm_abort)(Comm) = nullptr;
  Result (*async_error)(Comm, Result*) = nullptr;
  const char* (*error_string)(Result) = nullptr;
  const char* (*last_error)(Comm) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*all_reduce)(const void*, void*, std::size_t, Type, Op, Comm, cudaStream_t) = nullptr;
  Result (*reduce_scatter)(const void*, void*, std::size_t, Type, Op, Comm, cudaStream_t) = nullptr;
  Result (*all_gather)(const void*, void*, std::size_t, Type, Comm, cudaStream_t) = nullptr;
  Result (*broadcast)(const void*, void*, std::size_t, Type, int root, Comm,
                      cudaStream_t) = nullptr;
  Result (*reduce)(const void*, void*, std::size_t, Type, Op, int root, Comm,
                   cudaStream_t) = nullptr;
  Result (*send)(const void*, std::size_t, Type, int peer, Comm, cudaStream_t) = nullptr;
  Result (*receive)(void*, std::size_t, Type, int peer, Comm, cudaStream_t) = nullptr;
  Result (*mem_alloc)(void**, std::size_t) = nullptr;
  Result (*mem_free)(void*) = nullptr;

 private:
  SharedLibrary library_;
};

}  // namespace choir::nccl
