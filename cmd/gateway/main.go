// Command gateway is the hosted, multi-tenant gateway for in-app agent chat.
//
// It knows every room and decides nothing: config.go reads what an operator wrote, wire.go puts the rooms together, the other files are one
// command each.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // organisations name time zones, and a container may have no database of them

	"github.com/spf13/cobra"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy/rego/worker"
)

// version is set by the linker: -ldflags "-X main.version=v1.2.3".
var version = "dev"

func main() {
	if worker.Enter() {
		return
	}
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	tuneMemory()
	root := &cobra.Command{
		Use: "gateway", Short: "A multi-tenant gateway for in-app agent chat", SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.AddCommand(devCommand(), serveCommand(), checkCommand(), migrateCommand(), orgCommand(), auditCommand(), tokenCommand(), policyCommand(), redactionCommand(), pricesCommand(), usageCommand(), &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { _, err := fmt.Fprintln(c.OutOrStdout(), version); return err },
	})
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", say(err))
		return 1
	}
	return 0
}

// say tells an operator everything: here, unlike in an answer, the cause helps.
func say(err error) string {
	var fe *fault.Error
	if errors.As(err, &fe) && fe.Field != "" {
		return fe.Field + ": " + err.Error()
	}
	return err.Error()
}
