// A fixed set of pinned threads that run one function together, with a barrier
// between its parallel regions.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace edge_infer {

// Waits for `value` to differ from `old`: spins briefly, because a region of a decode
// step lasts microseconds, then parks in the kernel so that an idle or descheduled
// thread costs nothing. Returns the new value.
uint32_t spin_then_park(const std::atomic<uint32_t>& value, uint32_t old, int spins);

class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  // Returns once all threads have called it. Writes before it are visible after it.
  void wait();

 private:
  const int threads_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
};

class ThreadPool {
 public:
  using Fn = void (*)(void* context, int thread);

  // `cpus` has one CPU per thread, or is empty for no pinning. The caller of run() is
  // thread 0; it is pinned only while it runs. Throws std::invalid_argument on a bad
  // count and std::system_error when a thread cannot be created or pinned.
  ThreadPool(int threads, std::vector<int> cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }
  const std::vector<int>& cpus() const { return cpus_; }
  Barrier& barrier() { return barrier_; }

  // Runs fn(context, t) for t in [0, size()), and returns when all have returned.
  // One caller at a time: concurrent callers wait for each other. Throws
  // std::runtime_error in a forked child.
  void run(Fn fn, void* context);

 private:
  void worker(int thread);

  const int threads_;
  const std::vector<int> cpus_;
  Barrier barrier_;
  Fn fn_ = nullptr;
  void* context_ = nullptr;
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> done_{0};
  void stop_and_join();

  std::vector<std::thread> workers_;
  const int owner_;  // the process: a forked child has none of the threads
};

}  // namespace edge_infer
