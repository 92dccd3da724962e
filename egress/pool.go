package egress

import (
	"context"
	"net"
	"sync/atomic"
)

// Dial opens a connection, as http.Transport.DialContext does.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Pool counts the connections that are opened through it, so that the pool of a transport can be seen from outside. The zero value is ready.
type Pool struct {
	open           atomic.Int64
	opened, failed atomic.Int64
}

// PoolStats is what a Pool has counted: connections open now, and opened and failed so far.
type PoolStats struct{ Open, Opened, Failed int64 }

// Stats returns the counts.
func (p *Pool) Stats() PoolStats {
	return PoolStats{Open: p.open.Load(), Opened: p.opened.Load(), Failed: p.failed.Load()}
}

// Count returns dial with its connections counted.
func (p *Pool) Count(dial Dial) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			p.failed.Add(1)
			return nil, err
		}
		p.opened.Add(1)
		p.open.Add(1)
		return &counted{Conn: c, pool: p}, nil
	}
}

// counted is a connection that says when it is closed, once.
type counted struct {
	net.Conn
	pool   *Pool
	closed atomic.Bool
}

func (c *counted) Close() error {
	if !c.closed.Swap(true) {
		c.pool.open.Add(-1)
	}
	return c.Conn.Close()
}
