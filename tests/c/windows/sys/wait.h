/* For tests that fork: they compile, and are skipped where they do. */
#define WIFEXITED(state) ((state) >= 0)
#define WEXITSTATUS(state) (state)
#define WIFSIGNALED(state) ((state) < 0)
#define WTERMSIG(state) (-(state))
#define WNOHANG 1
