#include "src/comm/mpi/mpi_session.hpp"

#include "src/comm/mpi/mpi_communicator.hpp"

#if defined(MPICH_VERSION)

#include <sched.h>

#include "src/core/process.hpp"

// The blocking calls are replaced through MPI's profiling interface (MPI 3.1, chapter 14): a call
// of MPI_Wait reaches the function below, and MPI's own function is PMPI_Wait.

namespace choir {
namespace {

bool crowded = false;

/// Calls `test`, which takes a flag, until the flag is set, and yields the core between calls.
template <class Test>
int wait_for(const Test& test) {
  for (int done = 0;;) {
    const int code = test(&done);
    if (code != MPI_SUCCESS || done != 0) return code;
    sched_yield();
  }
}

/// Begins a call with `start`, which takes a request, and waits for its completion.
template <class Start>
int finish(const Start& start, MPI_Status* status = MPI_STATUS_IGNORE) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = start(&request);
  if (code != MPI_SUCCESS) return code;
  return wait_for([&](int* done) { return PMPI_Test(&request, done, status); });
}

}  // namespace

void give_way_on_a_crowded_node() {
  MPI_Comm node = MPI_COMM_NULL;
  mpi_check(PMPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
            "MPI_Comm_split_type", "world");
  int ranks = 1;
  cpu_set_t cores = own_cores();
  mpi_check(PMPI_Comm_size(node, &ranks), "MPI_Comm_size", "node");
  mpi_check(PMPI_Allreduce(MPI_IN_PLACE, &cores, sizeof cores, MPI_BYTE, MPI_BOR, node),
            "MPI_Allreduce", "node");
  mpi_check(PMPI_Comm_free(&node), "MPI_Comm_free", "node");
  // All ranks decide alike, because a blocking call on one rank does not match a nonblocking one on
  // another.
  int somewhere = ranks > CPU_COUNT(&cores) ? 1 : 0;
  mpi_check(PMPI_Allreduce(MPI_IN_PLACE, &somewhere, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD),
            "MPI_Allreduce", "world");
  crowded = somewhere != 0;
}

extern "C" {

int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  if (!crowded) return PMPI_Wait(request, status);
  return wait_for([&](int* done) { return PMPI_Test(request, done, status); });
}
int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[]) {
  if (!crowded) return PMPI_Waitall(count, requests, statuses);
  return wait_for([&](int* done) { return PMPI_Testall(count, requests, done, statuses); });
}
int MPI_Waitany(int count, MPI_Request requests[], int* index, MPI_Status* status) {
  if (!crowded) return PMPI_Waitany(count, requests, index, status);
  return wait_for([&](int* done) { return PMPI_Testany(count, requests, index, done, status); });
}
int MPI_Send(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  if (!crowded) return PMPI_Send(data, count, type, to, tag, comm);
  return finish([&](MPI_Request* r) { return PMPI_Isend(data, count, type, to, tag, comm, r); });
}
int MPI_Recv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
             MPI_Status* status) {
  if (!crowded) return PMPI_Recv(data, count, type, from, tag, comm, status);
  return finish([&](MPI_Request* r) { return PMPI_Irecv(data, count, type, from, tag, comm, r); },
                status);
}
int MPI_Barrier(MPI_Comm comm) {
  if (!crowded) return PMPI_Barrier(comm);
  return finish([&](MPI_Request* r) { return PMPI_Ibarrier(comm, r); });
}
int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  if (!crowded) return PMPI_Bcast(data, count, type, root, comm);
  return finish([&](MPI_Request* r) { return PMPI_Ibcast(data, count, type, root, comm, r); });
}
int MPI_Reduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op, int root,
               MPI_Comm comm) {
  if (!crowded) return PMPI_Reduce(from, to, count, type, op, root, comm);
  return finish(
      [&](MPI_Request* r) { return PMPI_Ireduce(from, to, count, type, op, root, comm, r); });
}
int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  if (!crowded) return PMPI_Allreduce(from, to, count, type, op, comm);
  return finish(
      [&](MPI_Request* r) { return PMPI_Iallreduce(from, to, count, type, op, comm, r); });
}
int MPI_Gather(const void* from, int count, MPI_Datatype type, void* to, int of_one,
               MPI_Datatype to_type, int root, MPI_Comm comm) {
  if (!crowded) return PMPI_Gather(from, count, type, to, of_one, to_type, root, comm);
  return finish([&](MPI_Request* r) {
    return PMPI_Igather(from, count, type, to, of_one, to_type, root, comm, r);
  });
}
int MPI_Allgather(const void* from, int count, MPI_Datatype type, void* to, int of_one,
                  MPI_Datatype to_type, MPI_Comm comm) {
  if (!crowded) return PMPI_Allgather(from, count, type, to, of_one, to_type, comm);
  return finish([&](MPI_Request* r) {
    return PMPI_Iallgather(from, count, type, to, of_one, to_type, comm, r);
  });
}
int MPI_Alltoall(const void* from, int count, MPI_Datatype type, void* to, int of_one,
                 MPI_Datatype to_type, MPI_Comm comm) {
  if (!crowded) return PMPI_Alltoall(from, count, type, to, of_one, to_type, comm);
  return finish([&](MPI_Request* r) {
    return PMPI_Ialltoall(from, count, type, to, of_one, to_type, comm, r);
  });
}
}  // extern "C"

}  // namespace choir

#else

namespace choir {

void give_way_on_a_crowded_node() {}

}  // namespace choir

#endif
